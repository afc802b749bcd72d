"""The archive of a history that was repartitioned: what came later is in it, and it is recovered whole or not at all
(B-77)."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rewindmq.engine.config import ArchiveConfig, Config
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.identity import read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects, open_objects
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.local_space import SpaceLimits, keep_local
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.embedded.directory import read_layout
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.process import open_broker
from rewindmq.projections.rewind import format_time
from tests.support.amqp_wire import method, publish
from tests.support.archiving import archive_all
from tests.support.broker_harness import Harness
from tests.support.deadlines import eventually
from tests.support.failing_objects import Killed
from tests.support.failpoints import armed, once
from tests.support.harness_repartition import NAMES, ask, bodies, expected, filled, home, until_done
from tests.support.memory_nodes import watched
from tests.support.moved_queue import QUEUE, MovingRecorder, write_moved
from tests.support.moving_clients import Client, Q, declared
from tests.support.repartition import PARTITIONS, Steps

HOUR_MS = 3_600_000
MORE = 5  # partitions
NO_ARCHIVE = ArchiveConfig(None, HOUR_MS)


def begun_before(data: Path, objects: Objects) -> None:
    archive(data, objects)
    repartition(data)


def begun_after(data: Path, objects: Objects) -> None:
    close_segments(data)
    repartition(data)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log of two partitions with queues. Its broker is stopped."""
    with Harness(tmp_path / "data") as h:
        filled(h, NAMES)
    return tmp_path / "data"


def archive(data: Path, objects: Objects) -> None:
    """Archive all of a log whose broker is stopped."""
    close_segments(data)
    Archiver(objects, data).run()


def repartition(data: Path) -> None:
    """Move the queues of a log whose broker is stopped, and ends segments by their age alone."""
    with Harness(data, archive=NO_ARCHIVE) as h:
        ask(h, MORE)
        h.restart()
        until_done(h)


def require_all(data: Path, partitions: int) -> None:
    """A broker on this directory has this number of partitions, and each message once."""
    with Harness(data) as h:
        assert len(h.broker.partitions) == partitions
        if partitions == MORE:
            until_done(h)
        assert [bodies(h, name) for name in NAMES] == [expected(name) for name in NAMES]


def segments(data: Path) -> dict[str, int]:
    """Return the number of segments of each partition."""
    return {each.name: len(segment_files(each)) for each in (data / "log").glob("*-[0-9]*")}


# -- the archive grows ---------------------------------------------------------------------------------------------


def test_an_archive_goes_on_with_the_partitions_that_were_added(data: Path, objects: Objects, tmp_path: Path) -> None:
    archive(data, objects)
    repartition(data)
    archive(data, objects)
    identity = read_identity(objects)
    assert identity is not None
    assert (identity.begun_with, identity.queue_partitions) == (2, MORE)
    recover(objects, tmp_path / "recovered")
    require_all(tmp_path / "recovered", MORE)


def test_partitions_that_are_added_during_a_run_are_in_it(data: Path, objects: Objects, tmp_path: Path) -> None:
    archive(data, objects)
    archiver = Archiver(objects, data)

    def grow() -> None:
        repartition(data)
        close_segments(data)

    with armed("archive.before_listing", once(grow)):
        archiver.run()
    recover(objects, tmp_path / "recovered")
    require_all(tmp_path / "recovered", MORE)


def test_a_faster_archiver_of_added_partitions_is_no_other_history(data: Path, objects: Objects) -> None:
    archive(data, objects)
    archiver = Archiver(objects, data)

    def other_first() -> None:
        repartition(data)
        archive(data, objects)

    with armed("archive.before_manifests", once(other_first)):
        report = archiver.run()
    assert len(report.partitions) == 1 + MORE


@pytest.mark.parametrize("begin", [begun_before, begun_after])
def test_recovery_names_partitions_missing_from_the_archived_metadata(
    begin: Callable[[Path, Objects], None], data: Path, objects: Objects, tmp_path: Path
) -> None:
    """Else a broker would look for the queues where the new number puts them."""
    begin(data, objects)
    Archiver(objects, data).run()  # the segments in which it has happened are open
    assert Manifest.load(objects, "queues-4").end == 0
    recover(objects, tmp_path / "recovered")
    require_all(tmp_path / "recovered", MORE)
    archive(tmp_path / "recovered", objects)
    assert Manifest.load(objects, "queues-4").end > 0


def test_a_partition_without_an_entry_stands_in_nobodys_way(data: Path, objects: Objects) -> None:
    archive(data, objects)
    repartition(data)
    note_archive(data, objects.url)
    cut = keep_local(data, objects, SpaceLimits(size_bytes=1))
    assert [each.partition for each in cut.partitions] == [f"queues-{number}" for number in range(MORE)]
    with Harness(data) as h:
        newest_ms = h.now_ms
    trimmed = trim_directory(data, TrimRequest(before_ms=newest_ms + HOUR_MS))
    assert [each.offset for each in trimmed[2:]] == [0, 0, 0]
    require_all(data, MORE)


# -- the broker ends its segments ----------------------------------------------------------------------------------


def test_b77_an_archiving_broker_ends_its_segments_when_queues_moved(objects: Objects, tmp_path: Path) -> None:
    """So the archive is whole soon after a repartition, however old a segment may become."""
    with Harness(tmp_path / "data", archive=ArchiveConfig(objects.url, HOUR_MS)) as h:
        filled(h, NAMES)
        ask(h, MORE)
        h.restart()
        until_done(h)
        Archiver(objects, tmp_path / "data").run()
        recover(objects, tmp_path / "recovered")
    with Harness(tmp_path / "recovered") as h:
        assert [home(h, name) for name in NAMES if not bodies(h, name)] == []
        assert not h.broker.topology.placement.staying
    require_all(tmp_path / "recovered", MORE)


def test_a_broker_without_an_archive_ends_no_segment(data: Path) -> None:
    repartition(data)
    assert segments(data) == dict.fromkeys(("metadata-0", *(f"queues-{number}" for number in range(MORE))), 1)


def test_b77_segments_are_ended_when_something_has_followed_a_queue(objects: Objects, tmp_path: Path) -> None:
    async def test() -> None:
        config = Config(data=tmp_path / "data", partitions=PARTITIONS, archive=ArchiveConfig(objects.url, HOUR_MS))
        broker = open_broker(config)
        try:
            steps = Steps(broker)
            await steps.add()
            client, holder = await Client.opened(broker), await Client.opened(broker)
            await declared(client, Q)
            await holder.ask(method(1, "Basic.Consume", queue=Q, consumer_tag="held"), "Basic.ConsumeOk")
            client.send(publish(1, "", Q, b"one"))
            await holder.hear("Basic.Deliver")
            await holder.ask(method(1, "Basic.Cancel", consumer_tag="held"), "Basic.CancelOk")
            await steps.change()
            source, _ = steps.queue(Q)
            await steps.begin(Q)
            queue = await steps.end(Q)
            before = segments(config.data)
            broker.repartition.start()
            holder.connection.lost()
            broker.turns.end()
            await eventually(lambda: queue.messages_ready == 1)
            changed = [source.name, f"queues-{broker.homes.of('/', Q).index}"]
            await eventually(lambda: all(segments(config.data)[name] > before[name] for name in changed))
        finally:
            broker.close()

    watched(test())


# -- recoveries ----------------------------------------------------------------------------------------------------


def cut_off(whole: Path, to: Path, partition: str) -> Iterator[Objects]:
    """Yields copies of an archive that have the first entries of this partition: none, one, two ... and all."""
    count = len(list((whole / partition / "manifest").iterdir()))
    for end in range(count + 1):
        copy = to / f"archive-{end}"
        shutil.copytree(whole, copy)
        for entry in sorted((copy / partition / "manifest").iterdir())[end:]:
            entry.unlink()
        yield open_objects(str(copy))


def refusal(objects: Objects, data: Path, at: str | None = None) -> str:
    """Why a recovery is refused; "": it was done."""
    try:
        recover(objects, data, at=at)
    except ArchiveError as error:
        return str(error)
    return ""


def ready(data: Path) -> list[bytes]:
    """The messages of the queue that moves, when a broker has brought it to where it goes."""
    with Harness(data) as h:
        h.broker.repartition.start()
        placement = h.broker.topology.placement

        async def until_moved() -> None:
            await eventually(
                lambda: not placement.moving and not placement.staying and placement.wanted == placement.count
            )

        h.loop.run_until_complete(until_moved())
        h.settle()
        return bodies(h, QUEUE)


@pytest.fixture
def rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history that is written has new segments whenever time goes by."""
    wait = MovingRecorder.wait

    def roll(self: MovingRecorder, ms: int) -> None:
        self.log.commit_and_wait()
        for partition in self.log.partitions:
            partition.roll()
        wait(self, ms)

    monkeypatch.setattr(MovingRecorder, "wait", roll)


@pytest.mark.usefixtures("rolled")
def test_a_torn_archive_is_refused_and_is_whole_as_of_the_time_it_names(
    tmp_path: Path,
) -> None:
    moved = write_moved(tmp_path / "data")
    archive_all(moved.data, str(tmp_path / "whole"))
    refused, late = [], format_time(moved.end_ms)
    for number, objects in enumerate(cut_off(tmp_path / "whole", tmp_path, moved.now)):
        data = tmp_path / f"data-{number}"
        why = refusal(objects, data)
        if why:
            refused.append(number)
            assert refusal(objects, data, at=late) == why
            assert not data.exists()
            told = re.search(r"let an archiver run to its end, or recover --at (\S+): ", why)
            assert told is not None, why
            assert refusal(objects, data, at=told[1]) == ""
            assert ready(data) == [b"second", b"third"], why
    assert refused[:2] == [0, 1]
    assert len(refused) < number


@pytest.mark.usefixtures("rolled")
def test_an_archive_that_lacks_how_messages_left_is_refused(tmp_path: Path) -> None:
    """The one that a consumer held would leave with a number that its queue has seen, and another one twice."""
    moved = write_moved(tmp_path / "data", hold=True)
    archive_all(moved.data, str(tmp_path / "whole"))
    asked = []
    for number, objects in enumerate(cut_off(tmp_path / "whole", tmp_path, moved.old)):
        why = refusal(objects, tmp_path / f"data-{number}")
        if "have left it later" in why:
            told = re.search(r"recover --at (\S+): ", why)
            assert told is not None, why
            asked.append(told[1])
            assert refusal(objects, tmp_path / f"data-{number}", at=told[1]) == ""
            found = ready(tmp_path / f"data-{number}")
            assert sorted(found) == ([b"held", b"second", b"third"] if found else []), why
    assert asked
    assert found, "the last one had them"


def recover_until_segments(objects: Objects, directory: Path) -> None:
    def killed(done: int, total: int) -> None:
        if done == total:
            raise Killed

    recover(objects, directory, killed)


def recover_until(point: str) -> Callable[[Objects, Path], None]:
    def killed() -> None:
        raise Killed

    def recover_until_point(objects: Objects, directory: Path) -> None:
        with armed(point, killed):
            recover(objects, directory)

    return recover_until_point


@pytest.mark.parametrize(
    ("recover_in_part", "is_ended"),
    [
        pytest.param(recover_until_segments, False, id="segments"),
        pytest.param(recover_until("recovery.before_layout"), False, id="layout"),
        pytest.param(recover_until("recovery.before_end"), True, id="end"),
    ],
)
def test_a_recovery_that_was_begun_before_the_archive_grew_ends_rightly(
    recover_in_part: Callable[[Objects, Path], None], is_ended: bool, data: Path, objects: Objects, tmp_path: Path
) -> None:
    archive(data, objects)
    recovered = tmp_path / "recovered"
    with pytest.raises(Killed):
        recover_in_part(objects, recovered)
    repartition(data)
    archive(data, objects)
    rows = recover(objects, recovered)
    partitions = 2 if is_ended else MORE  # behind its last step, it is what it was
    assert len(rows) == 1 + partitions == 1 + read_layout(recovered)
    assert [each.next_offset for each in rows] == [
        min(each.next_offset, Manifest.load(objects, each.partition).end) for each in rows
    ]
    require_all(recovered, partitions)
