"""Finds moves of queues that are archived in part: partitions are archived one by one, each up to an end of its own.

    torn = torn_at(metadata, queues, identity.begun_with)       None: each queue that moved is whole
    torn.whole_ms                          up to this time the archive is whole in all partitions
    torn.text                              what is missing, in one line

    archived in one partition                            needs, in another one
    source       DeadLettersForwarded.relocated          the last of the messages that it names, in the target
    metadata     QueueMoveEnded                          the incarnation that it names, in the target
    source       QueueDrained                            QueueMoveBegan, in the metadata log
    a partition  a queue that is declared there          an event of the metadata log that places its name there

- A recovery up to the archived ends would lose messages, or have a queue where no name leads. All of it is in the
  archive as of an earlier time.
- What is missing of a partition came at the time of its last archived record, or later. So what needs it came then, or
  later, too: only that is read. And nothing that came before `whole_ms` needs what is missing.
- Nothing needs a partition that came later before queues are placed by its number. If an
  archiver was ended, its archive may not count it yet.
- Only a history that was repartitioned is read for it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rewindmq.engine.log.archive.reader import ArchivedPartition
from rewindmq.engine.log.embedded.directory import queue_partition
from rewindmq.projections.machine.data.reasons import RELOCATED
from rewindmq.projections.replay import events_of, groups_of
from rewindmq.projections.rewind import format_time
from rewindmq.projections.topology.json_texts import Nonsense
from rewindmq.projections.topology.placement import Placement
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import DeadLettersForwarded, Event, Published, QueueDeclared, QueueDrained
from rewindmq.schemas.placement_events import PlacementEvent, QueueMoveBegan
from rewindmq.schemas.single_object import decoder_of

_WINDOW = 1_000  # records at the end of a target that are looked at first


@dataclass(frozen=True, slots=True)
class Torn:
    """What a recovery up to the archived ends would lack. See the module."""

    whole_ms: int
    text: str


def torn_at(metadata: ArchivedPartition, queues: Sequence[ArchivedPartition], begun_with: int) -> Torn | None:
    """The moves that are archived in part; None: there are none.

    `begun_with`: the number of queue partitions with which the archive was begun. Raises CorruptObject, ArchiveError,
    NoAnswer."""
    moves = _Moves(metadata)
    placement = moves.placement
    if not placement.count and len(queues) == begun_with:
        return None
    later = range(len(queues), placement.count)
    queues = [*queues, *(metadata.beside(queue_partition(number)) for number in later)]
    return _Search(metadata, queues, begun_with, moves).found()


class _Moves:
    """What the archived metadata log says of moves.

    `begun`: vhost, queue and incarnation of all queues that began to move."""

    def __init__(self, metadata: ArchivedPartition) -> None:
        self.placement = Placement()
        self.begun: set[tuple[str, str, int]] = set()
        for _, timestamp_ms, _, event in events_of(metadata):
            if isinstance(event, PlacementEvent):
                with suppress(Nonsense):  # the fold passes it over, too
                    self.placement.apply(timestamp_ms, event)
                if isinstance(event, QueueMoveBegan):
                    self.begun.add((event.vhost, event.queue, event.queue_id))

    def targets(self, vhost: str, queue: str, source: int, queue_id: int) -> list[int]:
        """The partitions to which the messages of an incarnation have gone: the next one, or one that came later."""
        moves, moving = self.placement.moves.get((vhost, queue), []), self.placement.moving.get((vhost, queue))
        numbers = [number for number, each in enumerate(moves) if (each.source, each.from_id) == (source, queue_id)]
        found = [each.target for each in moves[numbers[0] :]] if numbers else []
        if moving is not None and (numbers or (moving.source, moving.from_id) == (source, queue_id)):
            found.append(moving.target)
        return found

    def all_targets(self, source: int) -> set[int]:
        """The partitions to which any messages of a partition have gone."""
        return {
            target
            for index, (vhost, queue), queue_id in self.placement.strays()
            if index == source
            for target in self.targets(vhost, queue, source, queue_id)
        }


class _Search:
    """One search."""

    def __init__(
        self, metadata: ArchivedPartition, queues: Sequence[ArchivedPartition], begun_with: int, moves: _Moves
    ) -> None:
        self._metadata = metadata
        self._queues = queues
        self._begun_with = begun_with
        self._moves = moves
        self._found: list[Torn] = []

    def found(self) -> Torn | None:
        """The earliest of what is torn."""
        self._look_at_ends()
        for index in range(len(self._queues)):
            self._look_at(index)
        return min(self._found, key=lambda each: each.whole_ms, default=None)

    def _look_at_ends(self) -> None:
        """Look at the queues that have come to a partition, and at partitions that came later."""
        placement = self._moves.placement
        for (_, queue), moves in placement.moves.items():
            for move in moves:
                if move.to_id >= self._queues[move.target].next_offset:
                    self._note(self._queues[move.target], f"queue '{queue}' has moved there later")
        if not placement.count:
            for later in self._queues[self._begun_with :]:
                if later.next_offset:
                    self._note(self._metadata, f"{later.name} was added later")

    def _look_at(self, index: int) -> None:
        """Look at what was archived of a partition behind the ends of those that it needs."""
        partition, moves = self._queues[index], self._moves
        needed = [self._metadata, *(self._queues[each] for each in moves.all_targets(index))]
        since_ms = min(map(self._end_ms, needed))
        forwarded: dict[tuple[str, str, int], int] = {}
        for event in _events(partition, partition.offset_at(since_ms - 1), partition.next_offset):
            if isinstance(event, DeadLettersForwarded) and event.relocated:
                forwarded[event.vhost, event.queue, event.queue_id] = event.sequence
            elif isinstance(event, QueueDrained):
                if (event.vhost, event.queue, event.queue_id) not in moves.begun:
                    self._note(self._metadata, f"queue '{event.queue}' began to move later")
            elif isinstance(event, QueueDeclared) and not self._is_placed(event, index):
                self._note(self._metadata, f"queue '{event.queue}' came to {partition.name} later")
        for (vhost, queue, queue_id), sequence in forwarded.items():
            targets = [self._queues[each] for each in moves.targets(vhost, queue, index, queue_id)]
            source = vhost, queue, queue_id, moves.placement.as_origin(vhost, queue, index)
            if targets and not any(_has_come(each, source, sequence) for each in targets):
                self._note(targets[0], f"messages of queue '{queue}' have moved there later")

    def _is_placed(self, event: QueueDeclared, index: int) -> bool:
        """Whether the metadata log, as it is archived, has the queue in this partition."""
        came = event.moved_from
        if came is not None:
            return (event.vhost, event.queue, came.queue_id) in self._moves.begun
        placement, name = self._moves.placement, (event.vhost, event.queue)
        moving = placement.moving.get(name)
        return index in (placement.home(*name, self._begun_with), -1 if moving is None else moving.source) or any(
            index in (each.source, each.target) for each in placement.moves.get(name, ())
        )

    def _note(self, lacking: ArchivedPartition, what: str) -> None:
        end_ms = self._end_ms(lacking)
        there = f"{lacking.name} is archived up to {format_time(end_ms)}"
        if not lacking.segments:
            there = f"nothing of {lacking.name} is archived"
        self._found.append(Torn(end_ms - 1, f"{there}, and {what}"))

    def _end_ms(self, partition: ArchivedPartition) -> int:
        """The time of the last archived record. If there is none: the time from which on queues were placed there, or
        0 if they always were."""
        if partition.segments:
            return partition.segments[-1].max_timestamp_ms
        index, placement = int(partition.name.rpartition("-")[2]), self._moves.placement
        return next((each.until_ms for each in reversed(placement.earlier) if each.count <= index), 0)


def _events(partition: ArchivedPartition, start: int, end: int) -> Iterator[Event]:
    """Yields the events between two offsets, without bodies."""
    decode = decoder_of(partition.framed).decode
    for offsets, records, _ in groups_of(partition, start, end):
        for offset, record in zip(offsets, records, strict=True):
            if start <= offset < end:
                with suppress(UndecodableRecord):
                    yield decode(record, False)[2]


def _has_come(target: ArchivedPartition, source: tuple[str, str, int, int], sequence: int) -> bool:
    """Whether the message with this number, or a later one, has come to the target from the source.

    It is looked for from the end on: it came just before its source heard of it."""
    end, window = target.next_offset, _WINDOW
    while end > target.start_offset:
        start = max(target.start_offset, end - window)
        for event in _events(target, start, end):
            origin = event.origin if isinstance(event, Published) else None
            if (
                origin is not None
                and origin.reason == RELOCATED
                and (origin.vhost, origin.queue, origin.queue_id, origin.partition) == source
                and origin.sequence >= sequence
            ):
                return True
        end, window = start, 2 * window
    return False
