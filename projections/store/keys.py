"""The keys of the state store: sorted bytes, so that the pieces of a queue or a partition are adjacent.

    +----------------+------+------+------------------+------------------+
    | partition name | 0x00 | kind | queue id, 8 bytes| number, 8 bytes  |
    +----------------+------+------+------------------+------------------+
      utf-8, no NUL          1 byte  big-endian         big-endian

    kind 'A'  applied offset (the fold's next offset, 8 bytes)                 no queue id, no number
    kind 'C'  one chunk of a queue's ready messages                            number = chunk number + 2**63
    kind 'H'  head: the machine's state that belongs to no queue               no queue id, no number
    kind 'I'  how many records were quarantined (8 bytes)                      no queue id, no number
    kind 'M'  a message as a record (`rewindmq.schemas.codec`) of a Published          number = message id
    kind 'Q'  a queue's settings, counters, consumers, unacked, outbox         no number
    kind 'S'  how many queues hold each of some shared messages (holders.py)    no queue id; number = the first id
    kind 'X'  a quarantined record (see quarantine.py)                         no queue id; number = its slot

A queue id is the offset of the `QueueDeclared` that made it, so a queue that is deleted and declared again never meets
the keys of the deleted queue. A message that several queues of the partition share is stored once, under `SHARED`
instead of a queue id, and without the names of its queues, which the log has. Chunk numbers may be negative (a queue
grows at both ends), hence the shift. `FORMAT` and `HISTORY` are the only keys outside every partition: a partition name
is never empty, so no partition's key begins with 0x00.
"""

from collections.abc import Iterator
from typing import Final

FORMAT: Final = b"\x00format"
FORMAT_VERSION = b"1"
HISTORY: Final = b"\x00history"  # the identities of the history, as JSON

SHARED: Final = (1 << 62) - 1  # instead of a queue id; no queue has it

_CHUNK_ZERO: Final = 1 << 63
_KINDS: Final = {
    ord("A"): "applied offset",
    ord("C"): "ready messages",
    ord("H"): "head",
    ord("I"): "count of quarantined records",
    ord("M"): "message",
    ord("Q"): "queue",
    ord("S"): "holders of shared messages",
    ord("X"): "quarantined record",
}


def partition_prefix(partition: str) -> bytes:
    """Return the bytes with which every key of a partition begins.

    Raises ValueError for a name that a key cannot contain."""
    if not partition or "\x00" in partition:
        raise ValueError(f"a partition name must not be empty or hold NUL: {partition!r}")
    return partition.encode() + b"\x00"


def applied(prefix: bytes) -> bytes:
    """Return the key of the partition's applied offset."""
    return prefix + b"A"


def head(prefix: bytes) -> bytes:
    """Return the key of the state that belongs to no queue."""
    return prefix + b"H"


def quarantine_count(prefix: bytes) -> bytes:
    """Return the key of the number of quarantined records."""
    return prefix + b"I"


def quarantined(prefix: bytes, slot: int) -> bytes:
    """Return the key of the quarantined record in this slot."""
    return prefix + b"X" + slot.to_bytes(8, "big")


def queue(prefix: bytes, queue_id: int) -> bytes:
    """Return the key of a queue's settings, counters, consumers, unacked messages and outbox."""
    return prefix + b"Q" + queue_id.to_bytes(8, "big")


def chunks(prefix: bytes, queue_id: int) -> bytes:
    """Return the bytes with which every chunk key of the queue begins."""
    return prefix + b"C" + queue_id.to_bytes(8, "big")


def chunk(prefix: bytes, queue_id: int, number: int) -> bytes:
    """Return the key of one chunk of a queue's ready messages. `number` may be negative."""
    return prefix + b"C" + queue_id.to_bytes(8, "big") + (number + _CHUNK_ZERO).to_bytes(8, "big")


def messages(prefix: bytes, queue_id: int) -> bytes:
    """Return the bytes with which every message key of the queue begins; append the message id, 8 bytes big-endian."""
    return prefix + b"M" + queue_id.to_bytes(8, "big")


def message(prefix: bytes, queue_id: int, message_id: int) -> bytes:
    """Return the key of one message of a queue."""
    return prefix + b"M" + queue_id.to_bytes(8, "big") + message_id.to_bytes(8, "big")


def shared(prefix: bytes, first: int) -> bytes:
    """Return the key of the counts of shared messages that begin with this id."""
    return prefix + b"S" + first.to_bytes(8, "big")


def spans(ids: list[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of successive ids: the first id, and the one past the last. The ids ascend."""
    since = past = ids[0] if ids else 0
    for message_id in ids:
        if message_id != past:
            yield since, past
            since = message_id
        past = message_id + 1
    if ids:
        yield since, past


def past(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with `prefix` (the end of a range)."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def queue_id_of(key: bytes, prefix: bytes) -> int:
    """Return the queue id in a key of the partition with this prefix."""
    start = len(prefix) + 1
    return int.from_bytes(key[start : start + 8], "big")


def message_id_of(key: bytes) -> int:
    """Return the message id in the key of a message."""
    return int.from_bytes(key[-8:], "big")


def chunk_number_of(key: bytes) -> int:
    """Return the chunk number in the key of a chunk."""
    return int.from_bytes(key[-8:], "big") - _CHUNK_ZERO


def describe(key: bytes, prefix: bytes) -> str:
    """Return the key for people, e.g. `queues-0 message queue_id=5 id=17`."""
    partition = prefix[:-1].decode()
    kind = key[len(prefix)]
    text = f"{partition} {_KINDS.get(kind, f'unknown kind {kind:#04x}')}"
    if kind in b"CMQ" and len(key) >= len(prefix) + 9:
        queue_id = queue_id_of(key, prefix)
        text += " shared" if queue_id == SHARED else f" queue_id={queue_id}"
    if kind in b"MS":
        text += f" id={message_id_of(key)}"
    elif kind == ord("C"):
        text += f" chunk={chunk_number_of(key)}"
    return text
