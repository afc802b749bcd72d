"""A queue as it was at a moment, from the history alone. The management API uses it, and the command line beside a
stopped broker.

    past = queue_at(InDirectory(data_dir), "/", "orders", At(time_ms=...), first=0, count=100)

The fold starts from the nearest snapshot of the queue's partition in the data directory. The rest, and the bodies by
their offsets, are read from the log, in the data directory or in Kafka. What was published before the log begins is in
its base. Nothing here writes or touches the live broker.

An incarnation is the life of a queue from a declaration to its end. Its name is the queue id: the offset of the
declaration. A queue that was deleted and declared again is another incarnation, also in a vhost that was made anew.
A queue that moved to another partition is one queue with several incarnations (partition_visits.py).
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from operator import itemgetter

from rewindmq.engine.config import Config
from rewindmq.engine.keeping.location import (
    HistoryPartition,
    HistoryReader,
    InDirectory,
    InKafka,
    Location,
    retry_if_trimmed,
)
from rewindmq.engine.keeping.single_records import neighbourhoods
from rewindmq.engine.keeping.tiers import local_base
from rewindmq.engine.rewind.partition_visits import lineage_of, log_at
from rewindmq.projections.floors import explained
from rewindmq.projections.machine.data.queue import MessageView, Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import decoder_for
from rewindmq.projections.rewind import At, BelowFloor, OutsideHistory, format_time, require_in_history, state_at
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.store.bases import Base
from rewindmq.projections.topology.placement import Placement
from rewindmq.projections.waypoints import Waypoints
from rewindmq.schemas.events import Published

# Two bodies with no more than so many records between them are read in one range.
READ_AT_ONCE = 1_000  # messages


class NoSuchQueue(Exception):
    """The queue did not exist at that moment. The text says so, for people."""


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message as it stood in the queue, with its publish, body included, and the time of that."""

    view: MessageView
    published_ms: int
    published: Published


@dataclass(frozen=True, slots=True)
class PastQueue:
    """A queue at a moment. `offset`: everything below it in the queue's partition has happened. `time_ms`: where the
    clock stands. `ahead_ms`: so far the clock of its expiries is ahead of that."""

    queue: Queue
    partition: str
    offset: int
    time_ms: int
    ahead_ms: int
    messages: list[PastMessage]


def history_of(config: Config, placement: Placement | None = None) -> Location:
    """The history of a broker with this configuration. `placement`: of the queue that is asked about."""
    if config.kafka is None:
        return InDirectory(config.data, placement)
    topics = InKafka(config.kafka, config.kafka_prefix, config.kafka_settings, config.archive.url)
    return replace(topics, data=config.data, partitions=config.partitions, placement=placement)


@lru_cache(maxsize=1)
def waypoints_of(history: Location) -> Waypoints:
    """The waypoints of a history, which this process keeps from question to question. A process has one history."""
    return Waypoints()


def histories_of(history: Location, vhost: str, queue: str) -> Iterator[Location]:
    """The history once for each partition that the queue may be in: as it is, then with fewer partitions. For a caller
    that does not know how many partitions the nodes use, since Kafka may have been given more
    (`InKafka.partitions`)."""
    yield history
    if not isinstance(history, InKafka) or history.partitions is not None:  # only topics grow beside their nodes
        return
    reader = history.open()
    if reader.placement.count:
        return  # the metadata log says where queues are
    found = len(reader.queues)
    seen = {partition_of(vhost, queue, found)}
    for partitions in range(found - 1, 0, -1):
        home = partition_of(vhost, queue, partitions)
        if home not in seen:
            seen.add(home)
            yield replace(history, partitions=partitions)


def unchanged(published: Published) -> Published:
    """The publish itself."""
    return published


def batched(items: Iterator[MessageView], count: int) -> Iterator[list[MessageView]]:
    """Lists of at most `count` items."""
    while batch := list(islice(items, count)):
        yield batch


def queue_at(
    history: Location,
    vhost: str,
    queue: str,
    at: At,
    first: int,
    count: int,
    incarnation: int | None = None,
    keep: Callable[[Published], Published] = unchanged,
    most_bytes: int | None = None,
    waypoints: Waypoints | None = None,
) -> PastQueue:
    """Fold a queue to a moment, and read at most `count` of its messages from position `first`: the ready ones in
    delivery order, then the unacked.

    `keep` is called with each publish as it is read, and its result is kept. The kept bodies have at most `most_bytes`
    together (None: no limit), so there may be fewer messages, but at least one. `waypoints`: of a process that is asked
    for many moments.
    Raises NoSuchQueue, OutsideHistory, LogError (no log there, a corrupt block, Kafka away)."""
    return retry_if_trimmed(
        lambda: _queue_at(history, vhost, queue, at, first, count, incarnation, keep, most_bytes, waypoints)
    )


def _queue_at(
    history: Location,
    vhost: str,
    queue: str,
    at: At,
    first: int,
    count: int,
    incarnation: int | None,
    keep: Callable[[Published], Published],
    most_bytes: int | None,
    waypoints: Waypoints | None,
) -> PastQueue:
    log, machine, found = folded_queue(history, history.open(), vhost, queue, at, incarnation, waypoints)
    messages: list[PastMessage] = []
    kept_bytes = 0
    for views in batched(islice(found.messages(), first, first + count), READ_AT_ONCE):
        ids = [view.message_id for view in views]
        published = {each: (when, keep(event)) for each, (when, event) in published_at(log, ids)}
        for view in views:
            when, event = published[view.message_id]
            kept_bytes += len(event.body)
            if most_bytes is not None and kept_bytes > most_bytes and messages:
                return PastQueue(found, log.name, machine.next_offset, machine.log_ms, machine.ahead_ms, messages)
            messages.append(PastMessage(view, when, event))
    return PastQueue(found, log.name, machine.next_offset, machine.log_ms, machine.ahead_ms, messages)


def messages_at(
    history: Location, vhost: str, queue: str, at: At, incarnation: int
) -> "tuple[str, array[int], array[int]]":
    """The queue's partition at a moment, and ids and sizes of all its messages then, in the order of `queue_at`.

    Raises as that."""
    ids, sizes = array("q"), array("q")
    log, _, found = retry_if_trimmed(lambda: folded_queue(history, history.open(), vhost, queue, at, incarnation))
    for view in found.messages():
        ids.append(view.message_id)
        sizes.append(view.size)
    return log.name, ids, sizes


def folded_queue(
    history: Location,
    reader: HistoryReader,
    vhost: str,
    queue: str,
    at: At,
    incarnation: int | None,
    waypoints: Waypoints | None = None,
) -> tuple[HistoryPartition, Machine, Queue]:
    """The queue at a moment, with its partition's log and the machine at that moment. `incarnation`: a queue id;
    another queue is not found (None: any is). Raises as `queue_at`."""
    log = log_at(reader, vhost, queue, at)
    if at.time_ms is not None:
        require_in_history([reader.metadata, *reader.queues], at.time_ms)
    try:
        machine = state_at(log, history.snapshots, at, waypoints, log.durable_offset)
    except BelowFloor as error:
        raise explained(error, reader.topology().history.floors) from None
    found = machine.queue(vhost, queue)
    if found is None or not is_of(reader, log, found, incarnation):
        when = f"offset {at.offset}" if at.time_ms is None else format_time(at.time_ms)
        which = "" if incarnation is None else f", incarnation {incarnation},"
        raise NoSuchQueue(
            f"no queue '{queue}'{which} in vhost '{vhost}' at {when} ({log.name}, offset {machine.next_offset})"
        )
    return log, machine, found


def is_of(reader: HistoryReader, log: HistoryPartition, queue: Queue, incarnation: int | None) -> bool:
    """Return True if the queue is this incarnation, or became it or came from it by a move (None: any will do)."""
    if incarnation is None:
        return True
    return queue.queue_id in lineage_of(reader.placement, queue.vhost, queue.name, incarnation).ids_in(log.name)


def published_at(log: HistoryPartition, message_ids: Iterable[int]) -> Iterator[tuple[int, tuple[int, Published]]]:
    """Yield (id, (timestamp, event)) of each message, in the order of the log. OutsideHistory."""
    wanted = sorted(message_ids)
    start = log.start_offset
    older = wanted[: bisect_left(wanted, start)]
    yield from _published_before(log, log.base() if older else None, older)
    del wanted[: len(older)]
    base = local_base(log, wanted[0]) if wanted else None
    kept = [] if base is None else [each for each in wanted if each < base.offset and base.record(each) is not None]
    rest = sorted(set(wanted) - set(kept)) if kept else wanted
    yield from heapq.merge(_published_before(log, base, kept), _published_in(log, rest), key=itemgetter(0))


def _published_in(log: HistoryPartition, wanted: list[int]) -> Iterator[tuple[int, tuple[int, Published]]]:
    """`published_at` for messages that the log has."""
    decoder = decoder_for(log)
    at = 0
    for block in log.read_ranges(neighbourhoods(wanted)):
        behind = block.first_offset + len(block.records)
        while at < len(wanted) and wanted[at] < behind:
            message_id = wanted[at]
            index = message_id - block.first_offset
            assert index >= 0, f"{log.name}: there is no record {message_id}"
            timestamp_ms, _, event = decoder.decode(block.records[index])
            if not isinstance(event, Published):
                raise OutsideHistory(f"{log.name}: the event at {message_id} is no publish")
            yield message_id, (timestamp_ms if block.timestamps_ms is None else block.timestamps_ms[index], event)
            at += 1
    assert at == len(wanted), f"{log.name}: there is no record {wanted[at]}"


def _published_before(
    log: HistoryPartition, base: Base | None, message_ids: list[int]
) -> Iterator[tuple[int, tuple[int, Published]]]:
    """`published_at` for messages that were published before a base: it has those that were queued there."""
    for message_id in message_ids:
        record = None if base is None else base.record(message_id)
        if record is None:
            what = f"message {message_id} is no longer kept, the history begins at offset {log.start_offset}"
            raise BelowFloor(log.name, log.start_offset, f"{log.name}: {what}")
        timestamp_ms, _, event = decoder_for(log).decode(record)
        assert isinstance(event, Published), f"{log.name}: the base has publishes only"
        yield message_id, (timestamp_ms, event)
