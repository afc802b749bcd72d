"""One queue as it was at a moment, from the history alone: for the management API, and for the command line beside a
stopped broker.

    past = queue_at(data_dir, "/", "orders", At(time_ms=...), first=0, count=100)

The fold starts from the nearest snapshot of the queue's partition; bodies are read from the log by offset. Nothing
here writes, and nothing touches the live broker, so it may run in a thread beside it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from engine.log.placement import partition_of
from engine.log.reader import EmbeddedLogReader, PartitionReader
from projections.machine.queue import MessageView, Queue
from projections.replay import PartitionLog
from projections.rewind import At, OutsideHistory, format_time, require_in_history, state_at
from projections.snapshots import Snapshots
from schemas.codec import Decoder
from schemas.events import Published


class NoSuchQueue(Exception):
    """The queue did not exist at that moment; the text says so, for people."""


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message as it stood in the queue, with what was published (the body as well) and when."""

    view: MessageView
    published_ms: int
    published: Published


@dataclass(frozen=True, slots=True)
class PastQueue:
    """`offset`: of the queue's partition, everything below it has happened. `clock_ms`: where the clock stands."""

    queue: Queue
    partition: str
    offset: int
    clock_ms: int
    messages: list[PastMessage]


def queue_at(data: Path, vhost: str, queue: str, at: At, first: int, count: int) -> PastQueue:
    """At most `count` messages from position `first` of the queue: the ready ones in delivery order, then the unacked.
    Raises NoSuchQueue, OutsideHistory, LogError (no log there, a corrupt block)."""
    reader = EmbeddedLogReader(data)
    number = partition_of(vhost, queue, len(reader.queues))
    log = reader.queues[number]
    if at.time_ms is not None:
        logs: list[PartitionLog] = [reader.metadata, *reader.queues]
        require_in_history(logs, at.time_ms)
    machine = state_at(log, Snapshots(data / "snapshots"), at)
    found = machine.queue(vhost, queue)
    if found is None:
        when = f"offset {at.offset}" if at.time_ms is None else format_time(at.time_ms)
        raise NoSuchQueue(f"no queue '{queue}' in vhost '{vhost}' at {when} ({log.name}, offset {machine.next_offset})")
    views = list(islice(found.messages(), first, first + count))
    published = dict(published_at(log, (view.message_id for view in views)))
    messages = [PastMessage(view, *published[view.message_id]) for view in views]
    return PastQueue(found, log.name, machine.next_offset, machine.clock_ms, messages)


def published_at(log: PartitionReader, message_ids: Iterable[int]) -> Iterator[tuple[int, tuple[int, Published]]]:
    """(id, (timestamp, event)) of each message, in the order of the log. Neighbours share the reading of a block."""
    decoder = Decoder()
    first, records = 0, ()  # type: int, tuple[bytes, ...]
    for message_id in sorted(message_ids):
        if not first <= message_id < first + len(records):
            block = next(log.read(message_id, message_id + 1), None)
            if block is None:
                raise OutsideHistory(f"{log.name}: message {message_id} is no longer kept")
            first, records = block.first_offset, tuple(block.records)
        timestamp_ms, _, event = decoder.decode(records[message_id - first])
        assert isinstance(event, Published), f"{log.name}: the event at {message_id} is no publish"
        yield message_id, (timestamp_ms, event)
