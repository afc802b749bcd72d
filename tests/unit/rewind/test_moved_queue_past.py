"""The past of a queue that moved to another partition (engine/rewind/partition_visits.py).

Every reader is compared with one history."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.keeping.location import InDirectory, Location
from rewindmq.engine.rewind.arguments import FIRST, LAST, NUMBER, TIME, Start
from rewindmq.engine.rewind.bindings_at import bindings_at
from rewindmq.engine.rewind.depth import depth
from rewindmq.engine.rewind.message_sources import LogSource
from rewindmq.engine.rewind.outcomes import Deadline, biography, changes, last_outcomes
from rewindmq.engine.rewind.partition_visits import BetweenPartitions, is_unclear, moment_in, partition_visits
from rewindmq.engine.rewind.policy_effects import policy_effects
from rewindmq.engine.rewind.queue_at import NoSuchQueue, queue_at
from rewindmq.engine.rewind.restorations import as_restored
from rewindmq.engine.rewind.restore_plan import NoPlan, Plan, RestoreRequest
from rewindmq.engine.rewind.search import SearchLimits, search, whole
from rewindmq.engine.rewind.what_if import candidate_for, what_if
from rewindmq.projections.history.search import Criteria
from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.restored_ids import is_restored, note_restored
from rewindmq.projections.marks import topology_of
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.placement import Move, Moving, Placement
from rewindmq.schemas.events import Published, QueueDeleted
from rewindmq.schemas.metadata_events import PolicySet
from rewindmq.schemas.placement_events import QueueMoveBegan, QueueMoveEnded
from rewindmq.schemas.values import Route
from tests.support.moved_queue import (
    AFTER,
    BACK_AND_FORTH,
    BEFORE,
    QUEUE,
    STAYING,
    Back,
    Moved,
    MovingRecorder,
    write_back,
    write_moved,
)
from tests.support.spark.histories import ANN

FATES = ("acked", "purged", "deleted", "ready", "unacked")


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Moved:
    return write_moved(tmp_path_factory.mktemp("moved") / "data")


@pytest.fixture(scope="module")
def history(moved: Moved) -> Location:
    return InDirectory(moved.data)


def bodies_at(history: Location, at: At, incarnation: int | None = None) -> tuple[str, list[bytes]]:
    past = queue_at(history, "/", QUEUE, at, 0, 10, incarnation)
    return past.partition, [each.published.body for each in past.messages]


def test_the_stays_are_those_before_and_after_the_move(history: Location, moved: Moved) -> None:
    one, other = partition_visits(history.open(), "/", QUEUE)
    assert (one.log.name, other.log.name) == (moved.old, moved.now)
    assert one.since_ms is None
    assert other.until_ms is None
    assert one.until_ms is not None
    assert other.since_ms is not None
    assert moved.before_ms < one.until_ms < moved.during_ms < other.since_ms < moved.after_ms
    assert len(partition_visits(history.open(), "/", STAYING)) == 1


def test_a_moment_is_read_in_the_partition_where_the_queue_was(history: Location, moved: Moved) -> None:
    assert bodies_at(history, At(time_ms=moved.before_ms)) == (moved.old, [b"second", b"third"])
    assert bodies_at(history, At(time_ms=moved.after_ms)) == (moved.now, [b"second", b"third"])
    assert bodies_at(history, At(time_ms=moved.end_ms)) == (moved.now, [])


def test_an_incarnation_is_the_same_queue_in_both_partitions(history: Location, moved: Moved) -> None:
    for incarnation in (moved.old_id, moved.new_id):
        assert bodies_at(history, At(time_ms=moved.before_ms), incarnation)[0] == moved.old
        assert bodies_at(history, At(time_ms=moved.after_ms), incarnation)[0] == moved.now
    with pytest.raises(NoSuchQueue):
        bodies_at(history, At(time_ms=moved.before_ms), 10_000)


def test_a_moment_within_the_move_is_refused_and_says_when_to_ask(history: Location, moved: Moved) -> None:
    with pytest.raises(BetweenPartitions, match=f"{moved.old} to {moved.now} from .* to .*: ask for moments"):
        bodies_at(history, At(time_ms=moved.during_ms))


def test_an_offset_is_one_of_the_named_partition(history: Location, moved: Moved) -> None:
    assert bodies_at(history, At(offset=moved.third, partition=moved.old)) == (moved.old, [b"second"])
    assert bodies_at(history, At(offset=moved.new)) == (moved.now, [b"second", b"third"])


def test_a_mark_holds_for_the_partition_where_the_queue_was(history: Location, moved: Moved) -> None:
    topology = topology_of(history.open().metadata)
    for name, partition in (("before", moved.old), ("moved", moved.now), ("after", moved.now)):
        at = moment_in(f"mark:{name}", "/", QUEUE, topology, 4)
        assert at.partition == partition
    assert bodies_at(history, moment_in("mark:before", "/", QUEUE, topology, 4))[1] == [b"second", b"third"]


def test_bindings_then_are_those_of_the_queue(history: Location, moved: Moved) -> None:
    reader = history.open()
    for log, queue_id, time_ms in (
        (reader.queues[moved.source], moved.old_id, moved.before_ms),
        (reader.queues[moved.target], moved.new_id, moved.after_ms),
    ):
        found = bindings_at(reader.metadata, None, log, "/", QUEUE, queue_id, At(time_ms=time_ms))
        assert [each.source for each in found] == ["sales"]


def test_the_depth_begins_where_the_queue_came_to(history: Location, moved: Moved) -> None:
    start, end = At(time_ms=moved.published_ms), At(time_ms=moved.end_ms)
    found = depth(history, "/", QUEUE, moved.new_id, start, end, 50, {}, Deadline(60))
    assert found.partition == moved.now
    assert found.points[0].time_ms > moved.during_ms
    assert [found.points[0].ready, found.points[-1].ready] == [2, 0]
    found = depth(history, "/", QUEUE, moved.new_id, start, At(time_ms=moved.before_ms), 50, {}, Deadline(60))
    assert found.partition == moved.old
    assert found.points[-1].ready == 2


def test_the_last_outcomes_go_back_through_both_partitions(history: Location, moved: Moved) -> None:
    tail = last_outcomes(history.open(), None, "/", QUEUE, moved.new_id, 100, None, Deadline(60))
    told = [(row.partition, row.value("outcome"), row.message_id) for row in tail.rows]
    assert (moved.old, "acked", moved.first) in told
    assert (moved.now, "acked", moved.came[moved.second]) in told
    assert (moved.old, "relocated", moved.second) in told
    assert tail.partition == moved.now
    assert tail.complete
    few = last_outcomes(history.open(), None, "/", QUEUE, moved.new_id, 2, None, Deadline(60))
    assert [row.partition for row in few.rows] == [moved.now] * 2


def test_changes_and_what_if_are_of_one_partition(history: Location, moved: Moved) -> None:
    reader, start = history.open(), At(time_ms=moved.published_ms - 1)
    candidate = candidate_for(QUEUE, {"max-length": 1}, None)
    before, end = At(time_ms=moved.before_ms), At(time_ms=moved.end_ms)
    found = changes(reader, None, "/", QUEUE, moved.new_id, start, before, 10, Deadline(60))
    assert found.partition == moved.old
    assert len(found.rows) > 0
    world = what_if(reader, None, "/", QUEUE, moved.new_id, candidate, start, before, 10, Deadline(60))
    assert world.after.outcomes["maxlen", "policy what-if.max-length"] > 0
    with pytest.raises(BetweenPartitions):
        changes(reader, None, "/", QUEUE, moved.new_id, start, end, 10, Deadline(60))
    with pytest.raises(BetweenPartitions):
        what_if(reader, None, "/", QUEUE, moved.new_id, candidate, start, end, 10, Deadline(60))


@pytest.mark.parametrize("asked", ["old", "new"])
@pytest.mark.parametrize("administrator", [True, False])
def test_a_message_is_followed_through_the_move(
    history: Location, moved: Moved, asked: str, administrator: bool
) -> None:
    here = moved.came[moved.second]
    partition, message_id = (moved.old, moved.second) if asked == "old" else (moved.now, here)
    queue_id = None if administrator else moved.new_id
    life = biography(history.open(), None, "/", partition, message_id, QUEUE, queue_id, Deadline(60))
    assert (life.message.partition, life.message.offset) == (moved.old, moved.second)
    told = [(row.partition, row.value("outcome"), row.message_id) for row in life.rows]
    assert told[0] == (moved.old, "published", moved.second)
    assert told[-1] == (moved.now, "acked", here)
    assert (moved.old, "relocated", moved.second) in told


def test_a_search_finds_a_message_once_where_it_was_published(history: Location, moved: Moved, tmp_path: Path) -> None:
    reader, subjects = history.open(), Subjects("", KeyStore(tmp_path), {})
    for queue, queue_id in ((QUEUE, 0), (QUEUE, moved.new_id), (None, 0)):
        criteria = Criteria("/", queue, None, None, None, b"second")
        ranges = whole(reader, criteria, queue_id, None, None)
        page = search(reader, criteria, ranges, SearchLimits(10, 100, 1_000, 60.0), subjects)
        assert [(each.partition, each.offset) for each in page.found] == [(moved.old, moved.second)]


def planned(history: Location, **asked: Any) -> Plan | NoPlan:
    wish = {"at": None, "undo": "", "fates": FATES, "ids": frozenset(), **asked}
    return RestoreRequest(history, "/", QUEUE, **wish).answer()


def test_a_restoration_follows_messages_through_the_move(history: Location, moved: Moved) -> None:
    plan = planned(history, at=At(time_ms=moved.before_ms), incarnation=moved.new_id)
    assert isinstance(plan, Plan)
    assert plan.partition == moved.old
    assert plan.fates == {"acked": 1, "purged": 1}
    assert [each.message_id for each in plan.messages] == [moved.second, moved.third]
    purged = planned(history, at=At(time_ms=moved.before_ms), fates=("purged",))
    assert isinstance(purged, Plan)
    assert [each.message_id for each in purged.messages] == [moved.third]
    assert [each.source for each in plan.bindings] == ["sales"]


def test_the_last_purge_is_undone_where_it_was(history: Location, moved: Moved) -> None:
    plan = planned(history, undo="purge", fates=("purged",))
    assert isinstance(plan, Plan)
    assert plan.partition == moved.now
    assert [each.message_id for each in plan.messages] == [moved.came[moved.third], moved.new]


def test_the_end_of_a_move_is_no_deletion_to_undo(history: Location) -> None:
    plan = planned(history, undo="delete", fates=("deleted",))
    assert isinstance(plan, NoPlan)
    assert plan.missing
    assert "nobody has asked to delete" in plan.reason


def test_messages_by_id_are_of_one_partition(history: Location, moved: Moved) -> None:
    for partition, message_id in ((moved.old, moved.first), (moved.now, moved.new)):
        plan = planned(history, ids=frozenset({message_id}), partition=partition)
        assert isinstance(plan, Plan)
        assert plan.partition == partition


def test_messages_on_their_way_count_as_ready(tmp_path: Path) -> None:
    moved = write_moved(tmp_path / "data", hold=True)
    plan = planned(InDirectory(moved.data), at=At(time_ms=moved.before_ms))
    assert isinstance(plan, Plan)
    assert plan.fates == {"acked": 2, "purged": 1}


def read_on(history: Location, number: int, start: Start, queue_name: str = QUEUE) -> list[bytes]:
    """All that a consumer with this x-stream-offset would get, which is attached in the partition with this number."""
    log = history.open().queues[number]
    machine = state_at(log, None, At(offset=log.next_offset))
    queue = machine.queue("/", queue_name)
    assert queue is not None
    partition: Any = SimpleNamespace(machine=machine, next_offset=log.next_offset, durable_offset=log.next_offset)
    source = LogSource(history, partition, queue, start)
    found = []
    while source.has_more():
        source.about_to_fetch()
        found += [message.body for _, message in source.fetch(log.next_offset)]
    return found


def test_a_reader_of_the_history_goes_through_both_partitions(history: Location, moved: Moved) -> None:
    now = moved.target
    assert read_on(history, now, Start(FIRST)) == [b"first", b"second", b"third", b"new"]
    assert read_on(history, now, Start(TIME, moved.before_ms)) == [b"new"]
    assert read_on(history, now, Start(TIME, moved.published_ms)) == [b"first", b"second", b"third", b"new"]
    assert read_on(history, now, Start(NUMBER, moved.came[moved.third])) == [b"third", b"new"]
    assert read_on(history, now, Start(LAST)) == [b"new"]


def test_a_change_of_a_policy_counts_a_queue_once(tmp_path: Path) -> None:
    moved = write_moved(tmp_path / "data", hold=True, ends=False)
    change = PolicySet("/", "short", f"^{QUEUE}$", '{"max-length":10}', 0, "all")
    cut = policy_effects(InDirectory(moved.data), change, moved.after_ms, 20, Deadline(60))
    assert (cut.matched, cut.changed) == (1, 1)


# -- a queue that moved back and forth --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def back(tmp_path_factory: pytest.TempPathFactory) -> Back:
    return write_back(tmp_path_factory.mktemp("back") / "data")


def test_a_queue_that_moved_back_has_a_stay_for_each_time(back: Back) -> None:
    history = InDirectory(back.data)
    found = partition_visits(history.open(), "/", BACK_AND_FORTH)
    assert [each.number for each in found] == [number for number, _ in back.lives] == [0, 2, 0, 4]
    for (number, _), ended_ms, count in zip(back.lives[1:], back.ended_ms, (2, 4, 5), strict=True):
        past = queue_at(history, "/", BACK_AND_FORTH, At(time_ms=ended_ms), 0, 10)
        assert (past.partition, len(past.messages)) == (f"queues-{number}", count)


def test_a_reader_gets_each_message_of_all_stays_once_and_late_ones(back: Back) -> None:
    bodies = read_on(InDirectory(back.data), 4, Start(FIRST), BACK_AND_FORTH)
    assert bodies == [b"one", b"two", b"late", b"three", b"four", b"five"]
    since = Start(TIME, back.ended_ms[1])
    assert read_on(InDirectory(back.data), 4, since, BACK_AND_FORTH) == [b"four", b"five"]


def test_the_last_outcomes_are_the_last_in_time(back: Back, tmp_path: Path) -> None:
    held = write_moved(tmp_path / "data", hold=True)
    for data, queue, queue_id in (
        (back.data, BACK_AND_FORTH, back.lives[-1][1]),
        (back.data, BACK_AND_FORTH, None),
        (held.data, QUEUE, held.new_id),
    ):
        reader = InDirectory(data).open()
        every = last_outcomes(reader, None, "/", queue, queue_id, 1_000, None, Deadline(60)).rows
        places = [(row.partition, row.offset, row.ordinal) for row in every]
        assert [row.time_ms for row in every] == sorted(row.time_ms or 0 for row in every)
        assert len(set(places)) == len(places)
        for count in range(1, len(every) + 1):
            tail = last_outcomes(reader, None, "/", queue, queue_id, count, None, Deadline(60)).rows
            assert [(row.partition, row.offset, row.ordinal) for row in tail] == places[-count:]
    assert (held.old, "acked", held.held) in [(row.partition, row.value("outcome"), row.message_id) for row in every]


def test_a_message_is_followed_from_any_of_its_names(back: Back) -> None:
    reader = InDirectory(back.data).open()
    for names in back.names.values():
        for number, message_id in names:
            life = biography(reader, None, "/", f"queues-{number}", message_id, BACK_AND_FORTH, None, Deadline(60))
            assert [row.message_id for row in life.rows if row.value("outcome") == "published"] == [
                message_id for _, message_id in names
            ]


def test_messages_with_one_id_in_two_partitions_come_back_each(back: Back) -> None:
    queue = Queue(Declaration("/", "to", 1, "classic"))
    ids = {number: {at[1] for names in back.names.values() for at in names if at[0] == number} for number in (0, 2)}
    message_id = min(ids[0] & ids[2])
    for partition in ("queues-0", "queues-2"):
        wish = RestoreRequest(
            InDirectory(back.data), "/", BACK_AND_FORTH, at=None, undo="", fates=FATES, ids=frozenset({message_id})
        )
        plan = replace(wish, partition=partition).answer()
        assert isinstance(plan, Plan)
        publish = Published(Route("/", "", "to", ("to",)), b"", persistent=True, body=b"", body_size=0)
        event = as_restored(plan, plan.messages[0], 0, publish, "/", "to", "named", 0)
        assert event.origin is not None
        assert not is_restored(queue, event.origin)
        note_restored(queue, event.origin)
        assert is_restored(queue, event.origin)


def test_a_queue_that_was_deleted_on_its_way_was_where_it_left(tmp_path: Path) -> None:
    recorder = MovingRecorder(tmp_path / "data")
    source, queue_id = recorder.partition(QUEUE), recorder.declare(QUEUE)
    recorder.publish(QUEUE, b"lost")
    recorder.wait(1_000)
    recorder.repartition(QUEUE)
    recorder.metadata(QueueMoveBegan("/", QUEUE, queue_id, partition_of("/", QUEUE, AFTER)))
    recorder.wait(1_000)
    recorder.mark("lost")
    recorder.append(source, ANN, QueueDeleted("/", QUEUE, False, False))
    recorder.wait(1_000)
    recorder.metadata(QueueMoveEnded("/", QUEUE, -1))
    recorder.wait(1_000)
    for index in range(BEFORE, AFTER):
        recorder.tick(index)
    recorder.close()
    history = InDirectory(tmp_path / "data")
    assert bodies_at(history, At(time_ms=recorder.now_ms - 2_500)) == (f"queues-{source}", [b"lost"])
    at = moment_in("mark:lost", "/", QUEUE, topology_of(history.open().metadata), AFTER)
    assert bodies_at(history, at) == (f"queues-{source}", [b"lost"])
    plan = planned(history, undo="delete", fates=("deleted",))
    assert isinstance(plan, Plan)
    assert (plan.partition, len(plan.messages)) == (f"queues-{source}", 1)


def test_a_queue_is_not_taken_for_an_earlier_one_of_its_number_elsewhere() -> None:
    placement, home = Placement(), partition_of("/", QUEUE, AFTER)
    placement.count = placement.wanted = AFTER
    placement.moves["/", QUEUE] = [Move(0, 20, home, 7, 1, 2)]
    assert not is_unclear(placement, "/", QUEUE, 7)  # it moved
    assert not is_unclear(placement, "/", QUEUE, 21)  # declared since
    assert is_unclear(placement, "/", QUEUE, 20)  # declared since, and the one that moved was 20 in queues-0
    placement.moving["/", QUEUE] = Moving(home, 7, 1, 3)
    assert not is_unclear(placement, "/", QUEUE, 7)
