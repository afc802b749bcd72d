"""A history is trimmed: what is queued stays, the broker goes on, and the past begins at the floor."""

import shutil
from pathlib import Path

import pytest

from rewindmq.engine.cli.main import run
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.location import InDirectory, retry_if_trimmed
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimRequest
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.engine.rewind.queue_at import PastQueue, queue_at
from rewindmq.engine.rewind.restore_plan import LOST, Plan, RestoreRequest
from rewindmq.projections.marks import topology_of
from rewindmq.projections.rewind import At, BelowFloor, TrimmedMeanwhile, format_time, state_at
from rewindmq.projections.store.bases import Base, Bases, queued_offsets
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.projections.verify import Verification, compare_all, verify
from rewindmq.spark_replay.audit.audit import base_findings
from tests.support.broker_harness import Harness
from tests.support.failpoints import armed
from tests.support.traffic import record
from tests.support.trimmed_broker import DAY_MS, QUEUES, SEGMENT_BYTES, Story, live, trimmed
from tests.support.trimming import PARTITION, directory_of, reader_of, starts


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Story]:
    data = tmp_path_factory.mktemp("lived")
    story = live(data)
    assert len(starts(data)) >= 4
    return data, story


@pytest.fixture
def story(lived: tuple[Path, Story]) -> Story:
    return lived[1]


@pytest.fixture
def data(lived: tuple[Path, Story], tmp_path: Path) -> Path:
    shutil.copytree(lived[0], tmp_path / "data")
    return tmp_path / "data"


def ready(data: Path, story: Story) -> dict[str, list[bytes]]:
    """Start a broker, take what is ready in each queue, and stop it."""
    with Harness(data, now_ms=story.end_ms, partitions=1, segment_bytes=SEGMENT_BYTES) as h:
        return {name: h.ready(name) for name in QUEUES}


def assert_whole(data: Path) -> None:
    """Log and store verify."""
    assert [each.base_offset for each in verify_chain(directory_of(data))] == starts(data)
    [report] = verify([reader_of(data)], data / "state")
    assert (report.result, report.stored) == ("equal", True), report.differences
    assert report.messages > 100


def test_b22_a_broker_goes_on_and_all_that_was_queued_is_there(data: Path, story: Story) -> None:
    report = trimmed(data, story, 2, "a test")
    assert report.offset == starts(data)[0] > 0
    assert (report.findings, report.queued > 100, report.freed_bytes > 0) == ([], True, True)
    assert report.until_ms <= story.days[2]
    assert not [at for at in Snapshots(data / "snapshots").offsets(PARTITION) if at < report.offset]
    assert_whole(data)
    assert ready(data, story) == story.ready
    assert_whole(data)


def test_the_metadata_log_says_what_went(data: Path, story: Story) -> None:
    report = trimmed(data, story, 2, "retention")
    floor = topology_of(EmbeddedLogReader(data).metadata).history.floors[PARTITION]
    base = Bases(data / "bases").open(PARTITION, report.offset)
    event = floor.event
    assert (event.offset, event.chain, event.digest) == (report.offset, base.chain, base.digest)
    assert (event.until_ms, event.findings, event.reason) == (report.until_ms, (), "retention")
    assert (floor.user, floor.time_ms) == ("", story.end_ms)


def test_b22_a_lost_store_begins_with_the_base(data: Path, story: Story) -> None:
    trimmed(data, story, 2)
    shutil.rmtree(data / "state")
    assert ready(data, story) == story.ready
    assert_whole(data)


def test_a_lost_store_and_lost_snapshots(data: Path, story: Story) -> None:
    trimmed(data, story, 3)
    shutil.rmtree(data / "state")
    shutil.rmtree(data / "snapshots")
    assert ready(data, story) == story.ready


def test_a_lost_base_is_a_warning_as_long_as_the_store_is_there(
    data: Path, story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    report = trimmed(data, story, 2)
    Bases(data / "bases").path(PARTITION, report.offset).unlink()
    assert ready(data, story) == story.ready
    assert f"queues-0 begins at offset {report.offset}, and its base is lost" in caplog.text
    shutil.rmtree(data / "state")
    with pytest.raises((LogError, StoreError), match=f"queues-0 begins at offset {report.offset}, and its base cannot"):
        ready(data, story)


def shown(past: PastQueue) -> list[object]:
    return [(each.view, each.published_ms, record(each.published)) for each in past.messages]


def test_what_lies_above_the_floor_can_be_asked_for(data: Path, lived: tuple[Path, Story]) -> None:
    whole, story = lived
    trimmed(data, story, 2)
    times = (story.days[2] + 10_000, story.days[3] - 1, story.days[3] + 30_000, story.end_ms)
    for name in QUEUES:
        for time_ms in times:
            asked = ("/", name, At(time_ms=time_ms), 0, 10_000)
            one, other = queue_at(InDirectory(data), *asked), queue_at(InDirectory(whole), *asked)
            assert shown(one) == shown(other)
            assert one.offset == other.offset


def test_asking_below_the_floor_names_it(data: Path, story: Story) -> None:
    report = trimmed(data, story, 2, "ticket 4711")
    for at in (At(time_ms=story.days[1]), At(offset=report.offset - 1), At(offset=0)):
        with pytest.raises(BelowFloor) as error:
            queue_at(InDirectory(data), "/", "orders", at, 0, 10)
        assert f"queues-0 begins at offset {report.offset}" in str(error.value)
        assert format_time(report.until_ms) in str(error.value)
        assert "an operator at the command line trimmed" in str(error.value)
        assert str(error.value).endswith(f"{format_time(story.end_ms)}: ticket 4711")


def test_the_past_that_is_left_can_be_restored(data: Path, story: Story) -> None:
    trimmed(data, story, 2)
    request = RestoreRequest(
        InDirectory(data), "/", "mortal", at=At(time_ms=story.days[2] + 500), undo="", fates=LOST, ids=frozenset()
    )
    plan = request.answer()
    assert isinstance(plan, Plan)
    assert plan.messages
    gone = RestoreRequest(
        InDirectory(data), "/", "mortal", at=At(time_ms=story.days[0] + 500), undo="", fates=LOST, ids=frozenset()
    ).answer()
    assert not isinstance(gone, Plan)
    assert "begins at offset" in gone.reason


def test_a_history_is_trimmed_again_and_again(data: Path, story: Story) -> None:
    for day in (1, 2, 3):
        report = trimmed(data, story, day)
        assert report.offset == starts(data)[0]
        assert Bases(data / "bases").offsets(PARTITION) == [report.offset]
        assert_whole(data)
    shutil.rmtree(data / "state")
    assert ready(data, story) == story.ready
    assert trimmed(data, story, 3).freed_bytes == 0


def test_a_dry_run_changes_nothing(data: Path, story: Story) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "_reserve"}
    [planned] = trim_directory(data, TrimRequest(before_ms=story.days[2]), dry_run=True, wall_ms=story.end_ms)
    assert {path: path.read_bytes() for path in before} == before
    assert not (data / "bases").exists()
    report = trimmed(data, story, 2)
    assert (planned.offset, planned.queued) == (report.offset, report.queued)


def killed() -> None:
    raise KeyboardInterrupt


def test_b22_a_lost_base_or_a_trim_killed_before_its_event_takes_nothing(
    data: Path, story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    first = trimmed(data, story, 1)
    with armed("trim.before_proof", killed), pytest.raises(KeyboardInterrupt):
        trimmed(data, story, 2)
    bases = Bases(data / "bases")
    assert bases.offsets(PARTITION)[0] == first.offset < bases.offsets(PARTITION)[1]
    bases.path(PARTITION, first.offset).unlink()
    assert ready(data, story) == story.ready
    assert starts(data)[0] == first.offset
    assert f"queues-0 begins at offset {first.offset}, and its base is lost" in caplog.text
    shutil.rmtree(data / "state")
    with pytest.raises((LogError, StoreError), match=f"begins at offset {first.offset}, and its base cannot"):
        ready(data, story)
    assert starts(data)[0] == first.offset


@pytest.mark.parametrize("point", ["trim.before_base", "trim.before_proof", "trim.before_event", "trim.before_end"])
def test_b22_a_kill_between_two_steps_is_made_good(data: Path, story: Story, point: str) -> None:
    with armed(point, killed), pytest.raises(KeyboardInterrupt):
        trimmed(data, story, 2)
    assert starts(data)[0] == 0, "nothing is removed before the event is durable"
    floors = topology_of(EmbeddedLogReader(data).metadata).history.floors
    assert bool(floors) == (point == "trim.before_end")
    assert ready(data, story) == story.ready
    if floors:  # the start has ended it
        assert starts(data)[0] == floors[PARTITION].event.offset
    else:
        assert starts(data)[0] == 0
    report = trimmed(data, story, 2)
    assert starts(data)[0] == report.offset
    assert_whole(data)


def test_the_next_trim_ends_one_that_was_killed(data: Path, story: Story) -> None:
    with armed("trim.before_end", killed), pytest.raises(KeyboardInterrupt):
        trimmed(data, story, 2)
    assert starts(data)[0] == 0
    report = trimmed(data, story, 1)
    floor = topology_of(EmbeddedLogReader(data).metadata).history.floors[PARTITION].event.offset
    assert report.offset == report.start == floor == starts(data)[0]


def test_damage_in_the_stretch_is_refused(data: Path, story: Story) -> None:
    path = segment_files(directory_of(data))[0]
    content = bytearray(path.read_bytes())
    content[-500] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrimRefused, match=r"its bytes do not match its checksum.*nothing was removed"):
        trimmed(data, story, 3)
    accepted = TrimRequest(before_ms=story.days[3], accept_findings=True)
    with pytest.raises(TrimRefused, match="nothing was removed"):  # the block has a message that is still queued
        trim_directory(data, accepted, wall_ms=story.end_ms)
    assert starts(data)[0] == 0


def test_a_false_claim_in_the_stretch_is_a_finding(data: Path, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.projections.machine.machine.Machine.digest", lambda self: "f" * 64, raising=True)
    with pytest.raises(TrimRefused, match=r"claimed \w+ after offset \d+, the fold has ffff.*--accept-findings"):
        trimmed(data, story, 2)
    monkeypatch.undo()
    assert starts(data)[0] == 0


def test_a_kept_time_counts_from_the_newest_event_unless_a_clock_jumped(data: Path, story: Story) -> None:
    keep = TrimRequest(keep_ms=2 * DAY_MS)
    [far] = trim_directory(data, keep, dry_run=True, wall_ms=story.end_ms + 10_000 * DAY_MS)
    [near] = trim_directory(data, keep, dry_run=True, wall_ms=story.end_ms)
    assert far.offset == near.offset > 0
    [behind] = trim_directory(data, keep, dry_run=True, wall_ms=story.days[1])
    assert behind.offset == 0
    with Harness(data, now_ms=story.end_ms + 4_000 * DAY_MS, partitions=1, segment_bytes=SEGMENT_BYTES):
        pass
    with pytest.raises(TrimRefused, match="a clock may have jumped; name the time with --before"):
        trim_directory(data, TrimRequest(keep_ms=400 * DAY_MS), wall_ms=story.end_ms + 4_000 * DAY_MS)
    [late] = trim_directory(
        data, keep, dry_run=True, wall_ms=story.end_ms
    )  # the log is ahead: the wall clock is right again
    assert late.offset == near.offset


def test_what_is_asked_wrongly_is_refused(data: Path, story: Story) -> None:
    with pytest.raises(TrimRefused, match="no partition 'queues-7': queues-0"):
        trim_directory(data, TrimRequest(before_ms=story.days[2], partition="queues-7"))
    with pytest.raises(LogError, match="no RewindMQ log"):
        trim_directory(data / "nothing", TrimRequest(before_ms=1))


def put_another_base(data: Path, offset: int) -> None:
    """A base that lacks what the last event before the floor did, under the same chain."""
    bases, reader = Bases(data / "bases"), reader_of(data)
    base = bases.open(PARTITION, offset)
    machine = base.machine()
    kept = dict(base.records())
    queue = machine.queue("/", "orders")
    assert queue is not None
    queue.published += 1
    bases.write(machine, base.chain, [(each, kept[each]) for each in queued_offsets(machine)])
    assert reader.base() is not None


def test_b22_another_base_is_found(data: Path, story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    report = trimmed(data, story, 2)
    assert run(["verify", "--data", str(data)]) == 0
    put_another_base(data, report.offset)
    assert list(verify_chain(directory_of(data))), "the log cannot know"
    assert run(["verify", "--data", str(data)]) == 1
    [finding] = base_findings(InDirectory(data).open())
    assert not finding.ok
    assert "another base was put there" in finding.detail
    shutil.rmtree(data / "state")
    ready(data, story)
    capsys.readouterr()
    assert run(["verify", "--data", str(data)]) == 1
    assert "another base was put there" in capsys.readouterr().err


@pytest.mark.parametrize("state_is_read", [False, True], ids=["before its state", "behind its state"])
def test_a_trim_behind_an_opened_base_is_overtaken(
    data: Path, story: Story, monkeypatch: pytest.MonkeyPatch, state_is_read: bool
) -> None:
    """A base was opened, and the history begins with another one by the time that its records are read."""
    older = trimmed(data, story, 1, "a test").offset
    log = reader_of(data)
    opened: list[int] = []

    def trimmed_behind_it() -> Base | None:
        base = opens()
        assert base is not None
        opened.append(base.offset)
        if len(opened) == 1:
            state = base.machine()
            trimmed(data, story, 3, "a test")
            if state_is_read:
                monkeypatch.setattr(base, "machine", lambda: state)
        return base

    opens = log.base
    monkeypatch.setattr(log, "base", trimmed_behind_it)
    assert state_at(log, None, At(offset=log.next_offset)).next_offset == log.next_offset
    assert opened == [older, log.start_offset]


def test_a_trim_that_overtakes_a_verification_is_no_difference(data: Path, story: Story) -> None:
    """Messages of the stored state that a newer base lacks are not differences: the question is asked again."""
    trimmed(data, story, 1, "a test")
    end = trim_directory(data, TrimRequest(before_ms=story.days[3]), dry_run=True)[0].offset
    machines = [state_at(reader_of(data), None, At(offset=at)) for at in range(starts(data)[0] + 1, end, 7)]
    report = trimmed(data, story, 3, "a test")
    kept = {at for at, _ in Bases(data / "bases").open(PARTITION, report.offset).records()}
    machine = next(each for each in machines if set(queued_offsets(each)) - kept)
    assert machine.next_offset < report.offset
    store = StateStore.open(data / "state", read_only=True)
    try:
        with pytest.raises(TrimmedMeanwhile):
            compare_all(machine, reader_of(data), store, Verification(PARTITION, machine.next_offset, True), False)
    finally:
        store.close()

    def asked() -> str:
        answers.append("once")
        if len(answers) == 1:
            raise TrimmedMeanwhile("it was trimmed")
        return "answered"

    answers: list[str] = []
    assert retry_if_trimmed(asked) == "answered"
