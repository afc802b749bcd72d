"""Finds messages that are archived in part as they go from one partition to another: each partition is archived up to
an end of its own.

    torn = torn_at(metadata, queues, identity.begun_with)       None: all is whole
    torn.whole_ms                          up to this time the archive is whole in all partitions
    torn.text                              what is missing, in one line
    ends, torn = whole_ends(partitions, identity.begun_with)    offsets up to which all is whole, of a log in Kafka
    torn = torn_letters(partitions, ends, identity.begun_with)  None: each dead letter has died in its source, too

    archived in one partition                            needs, in another one
    source       DeadLettersForwarded.relocated          the last of the messages that it names, in the target
    target       a message that came from the source     the QueueDrained with which it has left, in the source
    metadata     QueueMoveEnded                          the incarnation that it names, in the target
    source       QueueDrained                            QueueMoveBegan, in the metadata log
    a partition  a queue that is declared there          an event of the metadata log that places its name there
    target       a dead letter that came from a queue    the event by which the message died there

- A recovery up to the archived ends would lose messages, or have a queue where no name leads. All of it is in the
  archive as of an earlier time.
- What is missing of a partition came at the time of its last archived record, or later. So what needs it came then, or
  later, too: only that is read. In Kafka each partition has the clock of its broker: a minute more is read there.
- `whole_ms` lies just before the first record that needs something which is missing. It does not go back to the end of
  the partition that lacks it: nothing may have happened there for hours.
- Nothing needs a partition that came later before queues are placed by its number. If an archiver was ended, its
  archive may not count it yet.
- A message that follows a queue which was deleted arrives nowhere, and nothing lacks it. The state of the partition
  where the queue was tells so. It is folded only if a message is found nowhere: else an archive that is whole could not
  be recovered. It also knows of messages that came below the floor.
- Messages are numbered when they leave, dead letters too. If they had come, and not left, other ones would leave with
  their numbers: the target would take these for those that it has.
- Dead letters are found by the states of partitions at their archived ends: a target knows the numbers that came from
  each queue. Only what is torn is looked for in the events. A recovery tells of it and continues, because partitions
  end hours apart, and to end all of them with the first one would lose more. It appends the events `Torn.passing_over`
  to the sources, so that their next letters do not look like those that the targets have.
- For moves only a history that was repartitioned is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from rewindmq.engine.keeping.archive.objects import ArchiveError
from rewindmq.engine.keeping.archive.reader import ArchivedPartition
from rewindmq.engine.keeping.archive.snapshots import ArchivedSnapshots
from rewindmq.engine.keeping.topic_tiers import part_of
from rewindmq.engine.log.contract import Block, LogError
from rewindmq.engine.log.embedded.directory import queue_partition
from rewindmq.projections.machine.data.reasons import RELOCATED
from rewindmq.projections.machine.machine import Machine, NewerHistory
from rewindmq.projections.replay import beginning, decoder_for, events_of, fold, groups_of
from rewindmq.projections.rewind import begin_ms, format_time
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.store.bases import BaseError
from rewindmq.projections.store.snapshots import SnapshotError
from rewindmq.projections.topology.json_texts import Nonsense
from rewindmq.projections.topology.placement import Placement
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import DeadLettersForwarded, Event, Published, QueueDeclared, QueueDrained
from rewindmq.schemas.placement_events import PlacementEvent, QueueMoveBegan, QueueMoveEnded

SKEW_MS: Final = 60_000  # by which the clocks of Kafka's brokers may differ
_WINDOW: Final = 1_000  # records at the end of a target that are looked at first
_Source = tuple[str, str, int, int]  # vhost, queue, incarnation, partition as in Origin
_Heard = tuple[int, int, int]  # number of a message, the offset that tells of it, and its time


@dataclass(frozen=True, slots=True)
class Torn:
    """Says what a recovery up to the archived ends would lack. See the module.

    `needs`: by partition, the first offset whose record needs what is missing in another one. `passing_over`: by
    partition, events after which no queue there gives a letter a number that a target has seen."""

    whole_ms: int
    text: str
    needs: Mapping[str, int] = field(default_factory=dict, compare=False)
    passing_over: Mapping[str, Sequence[DeadLettersForwarded]] = field(default_factory=dict, compare=False)

    @property
    def told(self) -> str:
        """A line about dead letters: the effect on a recovery, and the time up to which nothing is missing."""
        twice = "they are in that queue again, and may be dead-lettered a second time"
        return f"{self.text}: {twice}. As of {format_time(self.whole_ms)} all is whole"


def torn_at(metadata: ArchivedPartition, queues: Sequence[ArchivedPartition], begun_with: int) -> Torn | None:
    """The moves that are archived in part; None: there are none.

    `begun_with`: the number of queue partitions with which the archive was begun. Raises CorruptObject, ArchiveError,
    NoAnswer; LogError where this version cannot fold a partition."""
    moves = _Moves(metadata)
    placement = moves.placement
    if not placement.count and len(queues) == begun_with:
        return None
    later = range(len(queues), placement.count)
    queues = [*queues, *(metadata.beside(queue_partition(number)) for number in later)]
    return _Search(metadata, queues, begun_with, moves).found()


def torn_letters(
    partitions: Sequence[ArchivedPartition], ends: Mapping[str, int], begun_with: int, until_ms: int = 0
) -> Torn | None:
    """Find dead letters that a recovery has in their target, and whose death it lacks in the source; None: no letter.

    `partitions`: the metadata log comes first. `ends`: by partition, the offset at which the recovery ends; a partition
    that is not named is left out. `until_ms`: the time at which partitions end before their archived end. Raises as
    `torn_at`."""
    if len(ends) < 3:
        return None
    metadata, *queues = [
        each if each.next_offset == ends[each.name] else _Part(each, ends[each.name], until_ms)
        for each in partitions
        if each.name in ends
    ]
    return _Search(metadata, queues, begun_with, _Moves(metadata)).found_letters()


def whole_ends(partitions: Sequence[ArchivedPartition], begun_with: int) -> tuple[list[int], Torn | None]:
    """Finds the ends of the partitions of a log in Kafka at which all is whole: the archived ones, or earlier ones.

    The clocks of Kafka's brokers differ. So at one time the one partition may have that messages have gone, and the
    other one not that they have come. Then the one ends before that. `partitions`: the metadata log comes first.
    Raises as `torn_at`."""
    torn = torn_at(partitions[0], partitions[1:], begun_with)
    if torn is None:
        return [each.next_offset for each in partitions], None
    ends = [each.offset_at(torn.whole_ms) for each in partitions]
    while True:
        parts = [_Part(each, end, torn.whole_ms) for each, end in zip(partitions, ends, strict=True)]
        more = torn_at(parts[0], parts[1:], begun_with)
        if more is None:
            return ends, torn
        before, ends = ends, [more.needs.get(each.name, end) for each, end in zip(partitions, ends, strict=True)]
        if ends == before:
            raise ArchiveError(f"{more.text}: the archive has grown meanwhile: run it again")


class _Part(ArchivedPartition):
    """An archived partition up to an offset, and to a time at most."""

    def __init__(self, whole: ArchivedPartition, end: int, most_ms: int) -> None:
        super().__init__(whole.manifest.objects, whole.name, whole.shared, whole.manifest)
        self._end = end
        self._most_ms = most_ms

    @property
    def next_offset(self) -> int:
        return self._end

    @property
    def until_ms(self) -> int | None:
        found = super().until_ms
        return None if found is None or self._end <= self.start_offset else min(found, self._most_ms)

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        behind = self._end if end is None else min(end, self._end)
        for block in super().read(offset, behind):
            yield part_of(block, block.first_offset, behind)

    def offset_at(self, timestamp_ms: int) -> int:
        return min(self._end, super().offset_at(timestamp_ms))


class _Moves:
    """Moves of queues, as the archived metadata log has them.

    `begun`: vhost, queue and incarnation of all queues that began to move. `ended_at`: the offset of the QueueMoveEnded
    of each move in `placement.moves`."""

    def __init__(self, metadata: ArchivedPartition) -> None:
        self.placement = Placement()
        self.begun: set[tuple[str, str, int]] = set()
        self.ended_at: dict[tuple[str, str, int], int] = {}  # by vhost, queue, and the number of the move
        for offset, timestamp_ms, _, event in events_of(metadata):
            if isinstance(event, PlacementEvent):
                with suppress(Nonsense):  # the fold passes it over, too
                    self.placement.apply(timestamp_ms, event)
                    if isinstance(event, QueueMoveEnded):
                        number = len(self.placement.moves[event.vhost, event.queue]) - 1
                        self.ended_at[event.vhost, event.queue, number] = offset
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

    def neighbours(self, partition: int) -> set[int]:
        """The partitions to which any messages of a partition have gone, or from which any have come."""
        found = set()
        for source, (vhost, queue), queue_id in self.placement.strays():
            targets = self.targets(vhost, queue, source, queue_id)
            if source == partition:
                found.update(targets)
            elif partition in targets:
                found.add(source)
        return found


@dataclass(slots=True)
class _Gone:
    """Messages that have gone from a queue to one of the targets, as its partition has heard.

    `heard`: the numbers up to which they have come. `came`: up to this number they are found."""

    index: int
    source: _Source
    targets: list[int]
    heard: list[_Heard]
    came: int = -1

    @property
    def most(self) -> int:
        return self.heard[-1][0]


class _Search:
    """One search."""

    def __init__(
        self, metadata: ArchivedPartition, queues: Sequence[ArchivedPartition], begun_with: int, moves: _Moves
    ) -> None:
        self._metadata = metadata
        self._queues = queues
        self._begun_with = begun_with
        self._moves = moves
        self._skew_ms = SKEW_MS if metadata.shared else 0
        self._first: tuple[int, str] | None = None  # time and text of the first record that needs what is missing
        self._needs: dict[str, int] = {}
        self._taken: dict[_Source, int] = {}  # the last number that a target has seen of a queue which has not given it
        self._folded: dict[int, Machine] = {}  # by number of the partition
        self._forwarded: dict[int, dict[tuple[str, str, int], int]] = {}  # as `_has_forwarded`, by number of partition

    def found(self) -> Torn | None:
        """The earliest of what is torn."""
        self._look_at_ends()
        gone: list[_Gone] = []
        for index in range(len(self._queues)):
            gone += self._look_at(index)
        self._look_for(gone)
        return self._torn()

    def found_letters(self) -> Torn | None:
        """The earliest of the dead letters whose death is missing."""
        for index in range(len(self._queues)):
            self._look_for_deaths(index)
        return self._torn()

    def _torn(self) -> Torn | None:
        if self._first is None:
            return None
        passing_over: dict[str, list[DeadLettersForwarded]] = {}
        for source, taken in self._taken.items():
            vhost, name, queue_id, _ = source
            event = DeadLettersForwarded(vhost, name, queue_id, 0, taken=taken)
            passing_over.setdefault(self._queues[self._index_of(source)].name, []).append(event)
        return Torn(self._first[0] - 1, self._first[1], self._needs, passing_over)

    def _look_at_ends(self) -> None:
        """Look at the queues that have come to a partition, and at partitions that came later."""
        placement, metadata = self._moves.placement, self._metadata
        for (vhost, queue), moves in placement.moves.items():
            for number, move in enumerate(moves):
                target = self._queues[move.target]
                if move.to_id >= target.next_offset:
                    at = self._moves.ended_at[vhost, queue, number]
                    self._note(metadata, at, move.ended_ms, target, f"queue '{queue}' has moved there later")
        if not placement.count:
            for later in self._queues[self._begun_with :]:
                if later.next_offset:
                    begin = begin_ms(later) or 0
                    self._note(later, later.start_offset, begin, metadata, f"{later.name} was added later")

    def _look_at(self, index: int) -> "Iterator[_Gone]":
        """Look at what was archived of a partition behind the ends of those that it needs.

        Yields the messages that have gone, and that may not have come."""
        partition, moves, metadata = self._queues[index], self._moves, self._metadata
        needed = [metadata, *(self._queues[each] for each in moves.neighbours(index))]
        since_ms = min(map(self._end_ms, needed)) - self._skew_ms
        forwarded: dict[tuple[str, str, int], list[_Heard]] = {}
        arrived: dict[_Source, list[_Heard]] = {}
        for at, time_ms, event in _events(partition, partition.offset_at(since_ms - 1), partition.next_offset):
            if isinstance(event, DeadLettersForwarded) and event.relocated:
                key = event.vhost, event.queue, event.queue_id
                forwarded.setdefault(key, []).append((event.sequence, at, time_ms))
            elif isinstance(event, Published):
                came = _came_from(event)
                if came is not None:
                    arrived.setdefault(came[0], []).append((came[1], at, time_ms))
            elif isinstance(event, QueueDrained):
                if (event.vhost, event.queue, event.queue_id) not in moves.begun:
                    self._note(partition, at, time_ms, metadata, f"queue '{event.queue}' began to move later")
            elif isinstance(event, QueueDeclared) and not self._is_placed(event, index, time_ms):
                what = f"queue '{event.queue}' came to {partition.name} later"
                self._note(partition, at, time_ms, metadata, what)
        self._look_for_drained(partition, arrived)
        for (vhost, queue, queue_id), heard in forwarded.items():
            targets = moves.targets(vhost, queue, index, queue_id)
            if targets:
                since_ms = min(self._end_ms(self._queues[each]) for each in targets) - self._skew_ms
                late = [each for each in heard if each[2] >= since_ms]
                if late:
                    source = vhost, queue, queue_id, moves.placement.as_origin(vhost, queue, index)
                    yield _Gone(index, source, targets, late)

    def _look_for_drained(self, target: ArchivedPartition, arrived: Mapping[_Source, list[_Heard]]) -> None:
        """Look whether messages that came to a partition have left the ones from which they came."""
        for key, heard in arrived.items():
            vhost, name, queue_id, _ = key
            index = self._index_of(key)
            source = self._queues[index]
            since_ms = self._end_ms(source) - self._skew_ms
            late = [each for each in heard if each[2] >= since_ms]
            if not late or self._has_forwarded(index, (vhost, name, queue_id)) >= late[-1][0]:
                continue
            queue = self._state(index).by_id.get(queue_id)
            if queue is None or queue.gone:
                continue
            for sequence, at, time_ms in late:
                if sequence >= queue.next_sequence:
                    self._note(target, at, time_ms, source, f"messages of queue '{name}' have left it later")

    def _look_for_deaths(self, index: int) -> None:
        """Look whether the dead letters that came to a partition have died where they came from."""
        early: dict[_Source, int] = {}  # the first number that the archived history of the source has not given yet
        for queue in self._state(index).by_id.values():
            for (vhost, name, queue_id, number, relocated), seen in queue.letters_seen.items():
                source = vhost, name, queue_id, number
                following = None if relocated else self._next_number(source, index)
                if following is not None and seen >= following:
                    early[source] = following
                    if following:
                        self._taken[source] = max(seen, self._taken.get(source, 0))
        if not early:
            return
        target, sources = self._queues[index], {each: self._queues[self._index_of(each)] for each in early}
        since_ms = min(map(self._end_ms, sources.values())) - self._skew_ms
        for at, time_ms, event in _events(target, target.offset_at(since_ms - 1), target.next_offset):
            origin = event.origin if isinstance(event, Published) else None
            if origin is not None and not origin.restore and origin.reason != RELOCATED:
                source = origin.vhost, origin.queue, origin.queue_id, origin.partition
                if origin.sequence >= early.get(source, origin.sequence + 1):
                    self._note(target, at, time_ms, sources[source], f"messages of queue '{origin.queue}' died later")

    def _next_number(self, source: _Source, target: int) -> int | None:
        """The number of the next letter of a queue; 0: the queue itself is missing; None: no number is given twice."""
        index = self._index_of(source)
        if index == target or index >= len(self._queues):
            return None
        queue_id = source[2]
        queue = self._state(index).by_id.get(queue_id)
        if queue is not None and not queue.gone:
            return queue.next_sequence
        return 0 if queue_id >= self._queues[index].next_offset else None  # else it was deleted

    def _index_of(self, source: _Source) -> int:
        """The number of the partition in which a source is."""
        vhost, name, _, origin = source
        made_with = self._moves.placement.made_with or self._begun_with
        return partition_of(vhost, name, made_with) if origin == -1 else origin

    def _has_forwarded(self, index: int, queue: tuple[str, str, int]) -> int:
        """The number up to which the end of a partition says that the messages of a queue have come; -1: nothing."""
        if index not in self._forwarded:
            partition, found = self._queues[index], dict[tuple[str, str, int], int]()
            start = partition.offset_at(self._end_ms(partition) - 2 * self._skew_ms - 1)
            for _, _, event in _events(partition, start, partition.next_offset):
                if isinstance(event, DeadLettersForwarded) and event.relocated:
                    found[event.vhost, event.queue, event.queue_id] = event.sequence
            self._forwarded[index] = found
        return self._forwarded[index].get(queue, -1)

    def _look_for(self, gone: "Sequence[_Gone]") -> None:
        """Look for messages that have gone, in the partitions to which they went: once in each, for all of them."""
        for target, partition in enumerate(self._queues):
            looked_for = {each.source: each.most for each in gone if target in each.targets and each.came < each.most}
            found = _last_come(partition, looked_for)
            for each in gone:
                each.came = max(each.came, found.get(each.source, -1))
        for each in gone:
            if each.came < each.most:
                self._look_at_state(each)
            for sequence, at, time_ms in each.heard:
                if sequence > each.came:
                    what = f"messages of queue '{each.source[1]}' have moved there later"
                    self._note(self._queues[each.index], at, time_ms, self._queues[each.targets[-1]], what)

    def _look_at_state(self, gone: "_Gone") -> None:
        """Look whether the queue was deleted where it went, so that its messages were, too, or has had them."""
        vhost, name, queue_id, origin = gone.source
        placement, target = self._moves.placement, self._queues[gone.targets[-1]]
        now = placement.followed(vhost, name, gone.index, queue_id)
        if (vhost, name) in placement.moving or now >= target.next_offset:
            return
        queue = None if now == -1 else self._state(gone.targets[-1]).queue(vhost, name)
        if queue is None or queue.gone or queue.queue_id != now:
            gone.came = gone.most
        elif len(gone.targets) == 1:  # else it knows, too, what it has only heard of in the one before
            gone.came = max(gone.came, queue.letters_seen.get((vhost, name, queue_id, origin, True), -1))

    def _state(self, index: int) -> Machine:
        """The state of a partition at its archived end.

        Raises CorruptObject, ArchiveError, NoAnswer; LogError where this version cannot fold it."""
        if index not in self._folded:
            partition = self._queues[index]
            try:
                self._folded[index] = _newest(partition) or beginning(partition)
                fold(self._folded[index], partition)
            except (NewerHistory, BaseError) as error:
                raise LogError(f"{partition.name}: {error}") from None
        return self._folded[index]

    def _is_placed(self, event: QueueDeclared, index: int, time_ms: int) -> bool:
        """Return True if the archived metadata log has the queue in this partition at this time or later."""
        came = event.moved_from
        if came is not None:
            return (event.vhost, event.queue, came.queue_id) in self._moves.begun
        placement, name = self._moves.placement, (event.vhost, event.queue)
        homes = {placement.home(*name, self._begun_with)}
        if name in placement.moving:
            homes.add(placement.moving[name].source)
        for move in placement.moves.get(name, ()):
            homes |= {move.source, move.target}
        for earlier in placement.earlier:
            if time_ms <= earlier.until_ms + self._skew_ms:
                homes.add(earlier.staying.get(name, partition_of(*name, earlier.count)))
        return index in homes

    def _note(self, partition: ArchivedPartition, at: int, time_ms: int, lacking: ArchivedPartition, what: str) -> None:
        """Note that a record of a partition needs what another one lacks."""
        self._needs[partition.name] = min(at, self._needs.get(partition.name, at))
        if self._first is None or time_ms < self._first[0]:
            there = f"{lacking.name} is archived up to {format_time(self._end_ms(lacking))}"
            if not lacking.next_offset:
                there = f"nothing of {lacking.name} is archived"
            self._first = time_ms, f"{there}, and {what}"

    def _end_ms(self, partition: ArchivedPartition) -> int:
        """The time of the last archived record, trimmed or not. If there is none: the time from which on queues were
        placed there, or 0 if they always were."""
        if partition.until_ms is not None:
            return partition.until_ms
        if partition.manifest.trims:
            return partition.manifest.trims[-1].until_ms
        index, placement = int(partition.name.rpartition("-")[2]), self._moves.placement
        return next((each.until_ms for each in reversed(placement.earlier) if each.count <= index), 0)


def _newest(partition: ArchivedPartition) -> Machine | None:
    """The newest archived state of a partition that can be used; None if there is none."""
    snapshots = ArchivedSnapshots(partition.manifest.objects.url)
    for offset in reversed(snapshots.offsets(partition.name)):
        if partition.start_offset <= offset <= partition.next_offset:
            with suppress(SnapshotError):
                return snapshots.load(partition.name, offset)
    return None


def _events(partition: ArchivedPartition, start: int, end: int) -> Iterator[tuple[int, int, Event]]:
    """Yields the events between two offsets, without bodies, with their offsets and times."""
    decode = decoder_for(partition).decode
    for offsets, records, times in groups_of(partition, start, end):
        for index, (offset, record) in enumerate(zip(offsets, records, strict=True)):
            if start <= offset < end:
                with suppress(UndecodableRecord):
                    timestamp_ms, _, event = decode(record, False)
                    yield offset, timestamp_ms if times is None else times[index], event


def _came_from(event: Event) -> tuple[_Source, int] | None:
    """The source of a message that moved with its queue, and its number there; None for any other event."""
    origin = event.origin if isinstance(event, Published) else None
    if origin is None or origin.reason != RELOCATED:
        return None
    return (origin.vhost, origin.queue, origin.queue_id, origin.partition), origin.sequence


def _last_come(target: ArchivedPartition, looked_for: Mapping[_Source, int]) -> dict[_Source, int]:
    """By source, the number of the last message that has come from it to the target; none if none has.

    They are looked for from the end on, up to the number given: a message came just before its source heard of it."""
    end, window, left, found = target.next_offset, _WINDOW, dict(looked_for), dict[_Source, int]()
    while end > target.start_offset and left:
        start = max(target.start_offset, end - window)
        for _, _, event in _events(target, start, end):
            came = _came_from(event)
            if came is not None and came[0] in left:
                found[came[0]] = max(found.get(came[0], -1), came[1])
        left = {source: most for source, most in left.items() if found.get(source, -1) < most}
        end, window = start, 2 * window
    return found
