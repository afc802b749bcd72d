"""Finds the queues that hold messages whose bodies are encrypted under certain keys.

    a watch begins    it scans the bodies in memory, and notes each body that the projector keeps from then on
    `look`            scans the bodies of a queue in RocksDB, some at a time
    a watch ends      the projector notes nothing more

A body is in memory or in RocksDB, or it arrives later. So when `look` has scanned all queues, the watch has met each
message that a queue holds. It may also have met messages that have left since it began.
"""

from collections.abc import Callable

from rewindmq.projections.store.bodies import Body
from rewindmq.projections.store.projector import Projector
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Published

LOOKED_AT = 256  # messages in one `look`, or
LOOKED_AT_BYTES = 1024 * 1024
HEAD_BYTES = 4_096  # of a stored message; the encryption precedes the body, and is mostly in these
MOST_NOTED = 100_000  # remembered ids of one queue; beyond that a message may be counted twice


class KeyHolding:
    """The messages of one queue in one group of keys: their number, and one of them."""

    def __init__(self, message_id: int) -> None:
        self.message_id = message_id
        self.count = 0


class KeyWatch:
    """A watch: see the head of this file. `found`: by queue id and group.

    `group_of`: the group of a key id; None: not watched. `parts`: each watched id contains one of them."""

    def __init__(self, projector: Projector, group_of: Callable[[str], str | None], parts: tuple[bytes, ...]) -> None:
        self.found: dict[int, dict[str, KeyHolding]] = {}
        self._projector = projector
        self._group_of = group_of
        self._parts = parts
        self._noted: dict[int, set[int]] = {}  # by queue id; met in memory, so `look` passes them over
        self._left: dict[int, frozenset[int]] = {}  # by queue id; before the first `look`, and RocksDB still has them
        self._decode = Decoder().decode
        projector.watch = self
        for queue_id, message_id, body in projector.in_memory():
            self._note_body(queue_id, message_id, body)

    def end(self) -> None:
        """Stop noting."""
        if self._projector.watch is self:
            self._projector.watch = None

    def groups(self) -> set[str]:
        """Return the groups of keys under which the watch has met a message."""
        return {group for groups in self.found.values() for group in groups}

    def kept(self, queue_id: int, message_id: int, message: Published) -> None:
        """Note a message that the projector keeps."""
        assert message.encryption is not None
        group = self._group_of(message.encryption.key_id)
        noted = self._noted.setdefault(queue_id, set())
        if group is not None and message_id not in noted:
            if len(noted) < MOST_NOTED:
                noted.add(message_id)
            self._count(queue_id, message_id, group)

    def look(self, queue_id: int, start: int) -> int | None:
        """Scan stored messages of a queue from the id `start` on, as many as one turn of the loop allows.

        Returns the id at which to continue; None: that was the last one. Raises a plain Exception of RocksDB."""
        noted = self._noted.get(queue_id, ())
        left = self._left.get(queue_id)
        if left is None:
            left = self._left[queue_id] = self._projector.leaving(queue_id)
        looked_at = size = 0
        for message_id, value in self._projector.stored(queue_id, start):
            if looked_at >= LOOKED_AT or size >= LOOKED_AT_BYTES:
                return message_id
            looked_at += 1
            size += len(value)
            if message_id in noted or message_id in left:
                continue
            group = self._group_in(value)
            if group is not None:
                self._count(queue_id, message_id, group)
        return None

    def _note_body(self, queue_id: int, message_id: int, body: Body) -> None:
        message = self._decode(body, False)[2] if isinstance(body, bytes) else body
        if isinstance(message, Published) and message.encryption is not None:
            self.kept(queue_id, message_id, message)

    def _group_in(self, value: bytes) -> str | None:
        if len(value) <= HEAD_BYTES and not any(part in value for part in self._parts):
            return None
        message = self._decode(value, False)[2]
        if not isinstance(message, Published) or message.encryption is None:
            return None
        return self._group_of(message.encryption.key_id)

    def _count(self, queue_id: int, message_id: int, group: str) -> None:
        groups = self.found.setdefault(queue_id, {})
        holding = groups.get(group)
        if holding is None:
            holding = groups[group] = KeyHolding(message_id)
        holding.count += 1
