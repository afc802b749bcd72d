"""--keep-history beside a broker that runs: what is too old goes, look by look, and nothing else does."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.broker.history_trims import HistoryTrims
from rewindmq.engine.keeping import in_directory, keep_history
from rewindmq.engine.keeping.archive.archiver import Archiver
from rewindmq.engine.keeping.archive.directory_note import archive_of
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.progress import Kept
from rewindmq.engine.keeping.in_directory import directory_keeper
from rewindmq.engine.keeping.keep_history import NOTE, KeepHistory, trusted_ms
from rewindmq.engine.keeping.local_space import SpaceLimits, keep_local
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.keeping.trim_audit import Audited, audit
from rewindmq.engine.keeping.trim_rules import TrimRefused
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.rewind.arguments import FIRST, Start
from rewindmq.engine.rewind.message_sources import LogSource
from rewindmq.projections.floors import in_words
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.verify import verify
from rewindmq.schemas.metadata_events import HistoryTrimmed
from tests.support.broker_harness import Harness
from tests.support.failpoints import armed
from tests.support.trimmed_broker import DAY_MS, QUEUES, SEGMENT_BYTES, Story, live
from tests.support.trimming import PARTITION, directory_of, reader_of, starts

YEAR_MS = 365 * DAY_MS


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Story]:
    data = tmp_path_factory.mktemp("lived")
    return data, live(data)


@pytest.fixture
def story(lived: tuple[Path, Story]) -> Story:
    return lived[1]


class Beside:
    """A broker that runs, and the looks of the process beside it. The test moves the clocks."""

    def __init__(self, data: Path, story: Story) -> None:
        self.data = data
        self.story = story
        self.seconds = 1_000.0
        self.wall_ms = story.end_ms
        self.events: list[HistoryTrimmed] = []
        self.url: str | None = None  # of the archive
        self.h = Harness(data, now_ms=story.end_ms, partitions=1, segment_bytes=SEGMENT_BYTES)

    @property
    def trims(self) -> HistoryTrims:
        found: HistoryTrims = self.h.broker.history.trims
        return found

    def keeper(self, keep_ms: int = 2 * DAY_MS) -> KeepHistory:
        """Another process."""
        clocks = lambda: self.seconds, lambda: self.wall_ms
        return directory_keeper(self.data, self.url, keep_ms, self.log, lambda: None, *clocks)

    def log(self, event: HistoryTrimmed) -> None:
        """Have the broker log the event, and wait for its answer."""
        answers: list[str | None] = []
        self.h.in_loop(lambda: self.trims.log(event, answers.append))
        self.h.settle()
        [refused] = answers
        if refused is not None:
            raise TrimRefused(refused)
        self.events.append(event)

    def look(self, keeper: KeepHistory) -> Kept:
        """The next look, and all that it begins; the broker is told of each."""
        self.seconds += keeper.seconds_left
        while True:
            kept = keeper.look()
            assert kept is not None
            self.trims.looked(kept)
            if keeper.seconds_left > 0:
                return kept

    def noted(self, keeper: KeepHistory) -> None:
        """The first look, which only notes the time; then days pass. The log has holes of a day, so at first an older
        time counts."""
        first = self.look(keeper)
        assert (first.before_ms, first.stays, first.error) == (None, (), None)
        assert (self.data / "log" / NOTE).exists()
        self.seconds += 10 * 86_400


@pytest.fixture
def beside(lived: tuple[Path, Story], tmp_path: Path) -> Iterator[Beside]:
    shutil.copytree(lived[0], tmp_path / "data")
    running = Beside(tmp_path / "data", lived[1])
    with running.h:
        yield running


def ready(beside: Beside) -> dict[str, list[bytes]]:
    return {name: beside.h.ready(name) for name in QUEUES}


def assert_whole(data: Path) -> None:
    [report] = verify([reader_of(data)], data / "state")
    assert (report.result, report.stored) == ("equal", True), report.differences


def test_b22_a_running_broker_trims_what_is_too_old(
    beside: Beside, story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    keeper = beside.keeper()
    beside.noted(keeper)
    assert starts(beside.data)[0] == 0
    kept = beside.look(keeper)
    assert (kept.stays, kept.error, kept.before_ms) == ((), None, story.end_ms - 2 * DAY_MS)
    floor = beside.trims.floors[PARTITION]
    assert floor.event.offset == starts(beside.data)[0] > 0
    assert floor.event.until_ms < story.end_ms - 2 * DAY_MS
    assert floor.event.reason == "--keep-history 2d"
    assert in_words(floor).startswith("the broker trimmed the events below offset")
    assert beside.trims.freed_bytes > 0
    assert f"queues-0: the history is trimmed below offset {floor.event.offset}, of 2023-11-1" in caplog.text
    assert Bases(beside.data / "bases").offsets(PARTITION) == [floor.event.offset]
    beside.h.restart()
    assert ready(beside) == story.ready
    beside.h.in_loop(beside.h.broker.close)
    assert_whole(beside.data)
    beside.h.broker = beside.h.open(beside.h.config)


def test_stretch_by_stretch(beside: Beside, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long part that is due goes in many trims, each with a floor and a base of its own."""
    monkeypatch.setattr(keep_history, "STRETCH_BYTES", 1)
    monkeypatch.setattr(keep_history, "BASES", 0)
    before = starts(beside.data)
    keeper = beside.keeper(1)
    beside.noted(keeper)
    beside.look(keeper)
    assert [event.offset for event in beside.events] == before[1 : len(before) - 1]
    assert starts(beside.data) == before[-2:], "two segments stay"
    assert len(segment_files(partition_directory(beside.data, METADATA))) >= 1
    shutil.rmtree(beside.data / "snapshots")
    beside.h.restart()
    assert ready(beside) == story.ready


def test_b22_a_clock_that_jumps_trims_nothing(beside: Beside, story: Story) -> None:
    keeper = beside.keeper(6 * DAY_MS)
    beside.noted(keeper)
    assert beside.look(keeper).before_ms == story.end_ms - 6 * DAY_MS
    beside.wall_ms = beside.h.now_ms = story.end_ms + 10 * YEAR_MS
    session = beside.h.session()
    beside.h.publish(session, "", "orders", b"in ten years")
    beside.h.settle()
    for _ in range(100):
        kept = beside.look(keeper)
        assert kept.before_ms is not None
    assert (beside.events, starts(beside.data)[0]) == ([], 0)
    beside.wall_ms = story.end_ms - YEAR_MS  # the wall clock alone is behind
    beside.seconds += YEAR_MS
    beside.look(keeper)
    assert beside.events == []


def test_b22_a_clock_that_had_jumped_before_the_first_look_trims_nothing(beside: Beside, story: Story) -> None:
    """Even after many days under the wrong clock."""
    beside.wall_ms = beside.h.now_ms = story.end_ms + 10 * YEAR_MS
    session = beside.h.session()
    for _ in range(30):
        beside.h.publish(session, "", "orders", b"in ten years")
        beside.h.pass_time(DAY_MS)
    beside.wall_ms = beside.h.now_ms
    keeper = beside.keeper(400 * DAY_MS)
    beside.noted(keeper)
    beside.seconds += 100 * 86_400
    beside.look(keeper)
    assert beside.events == []
    beside.seconds += 160 * 86_400  # time that really passes counts, twice
    beside.look(keeper)
    assert len(beside.events) == 1


def test_the_trusted_time(beside: Beside, story: Story) -> None:
    readers = [PartitionReader(partition_directory(beside.data, name)) for name in (METADATA, PARTITION)]
    assert trusted_ms(readers, story.end_ms, 32 * DAY_MS) == story.end_ms
    assert trusted_ms(readers, story.end_ms, 4 * DAY_MS) < story.days[1], "a hole of a day may be a jump, among so few"
    assert trusted_ms(readers, story.end_ms, 400 * DAY_MS) == story.end_ms, "the log is younger: nothing is missing"
    assert trusted_ms(readers, story.end_ms + 300 * DAY_MS, 400 * DAY_MS) <= story.end_ms
    assert trusted_ms(readers, story.end_ms + 300 * DAY_MS, 200 * DAY_MS) <= story.end_ms


def test_a_state_that_is_older_than_the_floor(beside: Beside, story: Story) -> None:
    """A broker stores its state now and then. After a kill the start goes on from the base."""
    session = beside.h.session()
    for _ in range(3):
        for number in range(200):
            beside.h.publish(session, "", "orders", b"later %d" % number + b"." * 100)
        beside.h.pass_time(DAY_MS)
    beside.wall_ms = beside.h.now_ms
    keeper = beside.keeper(DAY_MS)
    beside.noted(keeper)
    beside.look(keeper)
    floor = beside.trims.floors[PARTITION].event.offset
    [report] = verify([reader_of(beside.data)], beside.data / "state")
    assert (report.offset, report.stored, report.equal) == (floor, False, True)
    assert report.result.startswith("not checked: what is stored is older than the history")
    expected = {name: beside.h.ready(name) for name in QUEUES}
    copy = beside.h.killed_copy(beside.data.parent / "copy")
    try:
        assert {name: copy.ready(name) for name in QUEUES} == expected
    finally:
        copy.in_loop(copy.broker.close)
        copy.loop.close()


def test_a_reader_of_the_past_goes_on_at_the_floor(beside: Beside) -> None:
    """It stood below, when the segments went."""
    partition = beside.h.broker.queues.partition_for("/", "orders")
    queue = partition.machine.queue("/", "orders")
    source = LogSource(InDirectory(beside.data), partition, queue, Start(FIRST))
    found = source.fetch(partition.durable_offset)
    source.shut()
    source.position = found[0][0] + 1
    keeper = beside.keeper(DAY_MS)
    beside.noted(keeper)
    beside.look(keeper)
    floor = beside.trims.floors[PARTITION].event.offset
    assert source.position < floor
    more = []
    while source.has_more():
        source.about_to_fetch()
        more += source.fetch(partition.durable_offset)
    assert more
    assert more[0][0] >= floor


def test_the_note_that_is_lost_begins_anew(beside: Beside) -> None:
    keeper = beside.keeper()
    beside.noted(keeper)
    (beside.data / "log" / NOTE).write_text("{")
    beside.noted(keeper)
    beside.look(keeper)
    assert len(beside.events) == 1


def test_findings_stop_the_trim_and_are_told(
    beside: Beside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = beside.keeper()
    beside.noted(keeper)
    audits = []

    def lies(*given: Any) -> Audited:
        audits.append(given)
        audited = audit(*given)
        return replace(audited, findings=["a queue lost a message", *audited.findings])

    monkeypatch.setattr(in_directory, "audit", lies)
    for _ in range(3):
        kept = beside.look(keeper)
    [(partition, why)] = kept.stays
    assert (partition, why[:22]) == (PARTITION, "a queue lost a message")
    assert len(audits) == 1, "the same stretch is not audited again"
    assert (beside.events, starts(beside.data)[0]) == ([], 0)
    assert beside.trims.stays == {PARTITION: why}
    assert caplog.text.count("queues-0: older history is not trimmed: a queue lost a message") == 1
    monkeypatch.undo()
    beside.seconds += 60
    beside.look(beside.keeper())
    assert len(beside.events) == 1
    assert beside.trims.stays == {}


def test_damage_stops_the_trim(beside: Beside) -> None:
    path = segment_files(directory_of(beside.data))[0]
    content = bytearray(path.read_bytes())
    content[-500] ^= 1
    path.write_bytes(content)
    keeper = beside.keeper()
    beside.noted(keeper)
    kept = beside.look(keeper)
    assert "its bytes do not match its checksum" in dict(kept.stays)[PARTITION]
    assert (beside.events, starts(beside.data)[0]) == ([], 0)


def archived(beside: Beside) -> Objects:
    """Archive what is closed, and let the next process know the archive."""
    beside.url = str(beside.data.with_name("archive"))
    objects: Objects = open_objects(beside.url, make=True)
    Archiver(objects, beside.data).run()
    return objects


@pytest.mark.parametrize("local_bytes", [None, 1])
def test_an_archive_is_trimmed_too(
    beside: Beside, story: Story, local_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the local log begins above what is due, and stretch by stretch."""
    monkeypatch.setattr(keep_history, "STRETCH_BYTES", 100_000)
    monkeypatch.setattr(keep_history, "BASES", 0)
    objects = archived(beside)
    if local_bytes is not None:
        [cut] = keep_local(beside.data, objects, SpaceLimits(size_bytes=local_bytes)).partitions
        assert cut.start_offset > 0
    keeper = beside.keeper(DAY_MS)
    beside.noted(keeper)
    kept = beside.look(keeper)
    assert (kept.stays, kept.error) == ((), None)
    assert len(beside.events) > 1
    floor = beside.trims.floors[PARTITION].event.offset
    assert Manifest.load(objects, PARTITION).floor == floor
    assert archive_of(beside.data) == objects.url
    found = [key for key in objects.list(f"{PARTITION}/segments") if int(Path(key).name[:20]) < floor]
    assert found == []
    beside.h.restart()
    assert ready(beside) == story.ready


def test_while_the_archive_is_away_nothing_is_trimmed(
    beside: Beside, story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    archived(beside)
    keeper = beside.keeper()
    beside.noted(keeper)
    archive = beside.data.with_name("archive")
    archive.rename(archive.with_name("elsewhere"))
    for _ in range(3):
        kept = beside.look(keeper)
    assert "no such directory" in str(kept.error)
    assert beside.trims.error == kept.error
    assert caplog.text.count("the history is not trimmed") == 1
    assert (beside.events, starts(beside.data)[0]) == ([], 0)
    archive.with_name("elsewhere").rename(archive)
    beside.look(keeper)
    assert beside.trims.error is None
    assert starts(beside.data)[0] > 0


def killed() -> None:
    raise KeyboardInterrupt


POINTS = ["trim.before_base", "trim.before_proof", "trim.before_event", "trim.before_end", "trim.after_cut"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("broker_too", [False, True])
@pytest.mark.parametrize("with_archive", [False, True])
def test_b22_a_kill_at_each_step_is_made_good_by_the_next_look(
    beside: Beside, story: Story, point: str, broker_too: bool, with_archive: bool
) -> None:
    objects = archived(beside) if with_archive else None
    keeper = beside.keeper()
    beside.noted(keeper)
    with armed(point, killed), pytest.raises(KeyboardInterrupt):
        beside.look(beside.keeper())
    logged = point in ("trim.before_end", "trim.after_cut")
    assert (starts(beside.data)[0] > 0) == (point == "trim.after_cut")
    assert bool(beside.events) == logged
    if broker_too:
        beside.h.restart()
        assert (starts(beside.data)[0] > 0) == logged, "the start ends it"
    beside.seconds += 60
    beside.look(beside.keeper())
    assert len(beside.events) == 1
    assert starts(beside.data)[0] == beside.events[0].offset
    assert objects is None or Manifest.load(objects, PARTITION).floor == beside.events[0].offset
    beside.h.restart()
    assert ready(beside) == story.ready


def test_a_broker_refuses_a_trim_that_cannot_be(beside: Beside) -> None:
    event = HistoryTrimmed("queues-9", 10, until_ms=0, chain=bytes(32), digest="", findings=(), reason="")
    answers: list[str | None] = []
    for wrong in (
        event,
        HistoryTrimmed(PARTITION, 1 << 40, until_ms=0, chain=bytes(32), digest="", findings=(), reason=""),
    ):
        beside.h.in_loop(partial(beside.trims.log, wrong, answers.append))
    assert answers == ["queues-9 has no durable offset 10", f"queues-0 has no durable offset {1 << 40}"]
    beside.trims.stop()
    beside.h.in_loop(lambda: beside.trims.log(event, answers.append))
    assert answers[-1] == "the broker stops"


def test_b42_a_floor_stays_for_a_while(beside: Beside, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that reads beside the broker has to begin anew once, and not at each look. Stretches of one trim count as
    one."""
    monkeypatch.setattr(keep_history, "STRETCH_BYTES", 1)
    monkeypatch.setattr(keep_history, "BASES", 0)
    monkeypatch.setattr(keep_history, "SELDOM", 1)
    keeper = beside.keeper(2 * DAY_MS)
    beside.noted(keeper)
    first = starts(beside.data)
    beside.look(keeper)
    trimmed = [event.offset for event in beside.events]
    assert len(trimmed) > 1
    assert trimmed == first[1 : 1 + len(trimmed)]
    session = beside.h.session()
    passed_ms = 0
    while len(beside.events) == len(trimmed):
        assert passed_ms < 3 * DAY_MS, "what is older than the limit by more than a day stays"
        passed_ms += DAY_MS // 8
        beside.h.pass_time(DAY_MS // 8)
        beside.wall_ms = beside.h.now_ms
        for _ in range(40):
            beside.h.publish(session, "", "orders", bytes(200))
        beside.h.settle()
        beside.seconds += 86_400 // 8
        beside.look(keeper)
    assert passed_ms >= DAY_MS // 2
