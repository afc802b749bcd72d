"""Tells what became of messages that were in a queue at a moment, up to now: for a restoration (restore_plan.py).

    fates_since(reader, snapshots, log, machine, queue, {4, 5, 9})       {4: "acked", 5: "purged", 9: "ready"}

Messages that moved to another partition along with their queue are followed there.
"""

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader
from rewindmq.projections.machine.data.effects import Effect, endings
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import DELETED, RELOCATED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import decoder_for, drive, groups_of
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor


def fates_since(
    reader: HistoryReader,
    snapshots: Snapshots | None,
    log: HistoryPartition,
    machine: Machine,
    queue: Queue,
    ids: set[int],
) -> dict[int, str]:
    """The fates of these messages of a queue, from the machine's offset to the end of the log.

    Messages that moved with the queue to another partition are followed there. On their way they count as ready."""
    moves = reader.placement.moves.get((queue.vhost, queue.name), [])
    number, queue_id = list(reader.queues).index(log), queue.queue_id
    became = _fates_in(log, machine, queue_id, {each: each for each in ids}, None)
    moved = {each for each, fate in became.items() if fate == RELOCATED}
    names = {each: each for each in moved}  # in the partition that they left -> as they were asked for
    while moved:
        became |= dict.fromkeys(moved, "ready")
        move = next((each for each in moves if (each.source, each.from_id) == (number, queue_id)), None)
        if move is None:
            break
        if move.to_id < 0:  # the queue was deleted on its way
            became |= dict.fromkeys(moved, DELETED)
            break
        home = reader.placement.as_origin(queue.vhost, queue.name, number)
        arriving = _Arriving((queue.vhost, queue.name, queue_id, home, RELOCATED), names)
        number, queue_id = move.target, move.to_id
        log = reader.queues[number]
        found = _fates_in(log, state_at(log, snapshots, At(offset=queue_id)), queue_id, {}, arriving)
        became |= found
        moved = {each for each, fate in found.items() if fate == RELOCATED}
        names = {here: each for here, each in arriving.came.items() if each in moved}
    return became


class _Arriving:
    """Messages that come from a queue's old partition. `names`: by their ids there. `came`: by their new ids.

    `source`: the queue there, as origins name it: vhost, name, incarnation, partition and reason."""

    def __init__(self, source: tuple[str, str, int, int, str], names: dict[int, int]) -> None:
        self.source = source
        self.names = names
        self.came: dict[int, int] = {}
        self._known: set[int] = set()

    def note(self, offset: int, event: Published) -> int | None:
        """The name of a message that has just come; None for all others, and for a repeat."""
        origin = event.origin
        if origin is None:
            return None
        if (origin.vhost, origin.queue, origin.queue_id, origin.partition, origin.reason) != self.source:
            return None
        name = self.names.get(origin.message_id)
        if name is None or name in self._known:
            return None
        self._known.add(name)
        self.came[offset] = name
        return name


def _fates_in(
    log: HistoryPartition, machine: Machine, queue_id: int, names: dict[int, int], arriving: _Arriving | None
) -> dict[int, str]:
    """The fates in one partition, by the names of the messages. `names`: of those that are there; the others arrive."""
    became: dict[int, str] = {}

    def after(offset: int, _timestamp_ms: int, _actor: Actor, event: Event, effects: list[Effect]) -> None:
        if arriving is not None and type(event) is Published:
            name = arriving.note(offset, event)
            if name is not None:
                names[offset] = name
        for queue, message_id, fate, _ in endings(effects):
            if queue.queue_id == queue_id and message_id in names:
                became[names[message_id]] = fate

    drive(machine, groups_of(log, machine.next_offset), decoder_for(log), after=after)
    left = machine.by_id.get(queue_id)
    held = {message_id for each in left.holders.values() for message_id in each.held} if left is not None else set()
    for message_id, name in names.items():
        if name not in became:
            became[name] = "unacked" if message_id in held else "ready"
    return became
