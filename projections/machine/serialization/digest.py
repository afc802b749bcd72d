"""Digests of a queue and of a machine: equal states have equal digests.

A digest covers the fields of pack.py without their layout: neither chunk boundaries nor the consumed part of a chunk
count.
"""

import hashlib
from array import array

from rewindmq.projections.machine.data.declaration import NO_EPOCH
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.serialization.pack import (
    held_bytes,
    json_bytes,
    letter_fields,
    limiter_fields,
    number_bytes,
    pack_ids,
    queue_fields,
)
from rewindmq.projections.machine.state import State


def queue_digest(queue: Queue) -> str:
    """Return the SHA-256 (hex) of the queue's canonical state.

    It covers the small state, and the ids, words and expiries of messages in ready order, whatever their chunks. If the
    queue remembers ids of messages, they are part of it."""
    ids, words, expiries = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for order in queue.orders():
        start = order.start
        for chunk in order.chunks:
            ids.update(number_bytes(chunk.ids[start:]))
            words.update(number_bytes(chunk.words[start:]))
            rest = len(chunk.ids) - start
            never = array("q", [NONE]) * rest
            expiries.update(number_bytes(never if chunk.expiries is None else chunk.expiries[start:]))
            start = 0
    fields = queue_fields(queue)
    fields["outbox"] = letter_fields(queue)
    whole = hashlib.sha256(json_bytes(fields))
    whole.update(held_bytes(queue))
    for part in (ids, words, expiries):
        whole.update(part.digest())
    for exchange, remembered in sorted(queue.remembered.items()):
        if remembered.messages:
            whole.update(json_bytes([exchange, len(remembered.messages)]))
            for number in remembered.numbers():
                whole.update(pack_ids(remembered.of_chunk(number)))
    return whole.hexdigest()


def digest(state: State) -> str:
    """Return the SHA-256 (hex) of the machine's canonical state: version, limiters, lost epochs, queues' digests."""
    fields: dict[str, object] = {"machine_version": state.machine_version, "limiters": limiter_fields(state)}
    if state.lost_epochs:
        fields["lost_epochs"] = list(state.lost_epochs)
        fields["epochs"] = [[q.queue_id, q.epoch] for _, q in sorted(state.by_id.items()) if q.epoch != NO_EPOCH]
    whole = hashlib.sha256(json_bytes(fields))
    for queue in sorted(state.by_id.values(), key=lambda q: (q.vhost, q.name, q.queue_id)):
        whole.update(queue_digest(queue).encode())
    return whole.hexdigest()
