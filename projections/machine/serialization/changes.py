"""Packs the changes since the last time, so that a small change of a long queue writes little.

Only touched queues are packed, and of their messages only the changed chunks.
"""

from rewindmq.projections.machine.data.message_order import Order
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.serialization.pack import pack_chunk, pack_head, pack_ids, pack_meta
from rewindmq.projections.machine.state import State


class DirtyQueue:
    """The changes of one queue: write `meta`, write (replace) `chunks`, delete the chunks numbered in `vanished`."""

    def __init__(self, queue_id: int, meta: bytes, chunks: dict[int, bytes], vanished: list[int]) -> None:
        self.queue_id = queue_id
        self.meta = meta
        self.chunks = chunks
        self.vanished = vanished


class Dirty:
    """The changes since the last `take_dirty`: write `head` and each of `queues`, delete the queues `gone`.

    `gone`: queue ids; meta and chunks of each are deleted."""

    def __init__(self, head: bytes, queues: list[DirtyQueue], gone: list[int]) -> None:
        self.head = head
        self.queues = queues
        self.gone = gone


def take_dirty(state: State) -> Dirty:
    """Pack the changes since the last call, and begin anew."""
    queues: list[DirtyQueue] = []
    for queue in state.dirty_queues:
        queue.dirty = False
        if queue.gone and not len(queue.outbox):
            continue
        chunks: dict[int, bytes] = {}
        vanished: list[int] = []
        for order in queue.orders():
            _take_dirty_chunks(order, chunks, vanished)
        _take_dirty_ids(queue, chunks, vanished)
        vanished = [number for number in vanished if number not in chunks]
        queues.append(DirtyQueue(queue.queue_id, pack_meta(queue), chunks, vanished))
    gone = state.gone
    state.dirty_queues = []
    state.gone = []
    state.declared = 0
    return Dirty(pack_head(state), queues, gone)


def _take_dirty_chunks(order: Order, chunks: dict[int, bytes], vanished: list[int]) -> None:
    vanished.extend(order.vanished)
    for chunk in order.changed:
        if not chunk.dirty:
            continue
        chunk.dirty = False
        if len(chunk.ids) > 0:
            chunks[chunk.number] = pack_chunk(chunk)
            chunk.stored = True
        elif chunk.stored:
            vanished.append(chunk.number)
            chunk.stored = False
    order.vanished = []
    order.changed = []


def _take_dirty_ids(queue: Queue, chunks: dict[int, bytes], vanished: list[int]) -> None:
    for ids in queue.remembered.values():
        for number in ids.dirty:
            messages = ids.of_chunk(number)
            if messages:
                chunks[ids.stored_number(number)] = pack_ids(messages)
                ids.stored[number] = None
            elif number in ids.stored:
                vanished.append(ids.stored_number(number))
                del ids.stored[number]
        ids.dirty = {}
