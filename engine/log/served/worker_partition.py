"""One partition of the served log, as a worker sees it.

append -> `sent` ............ OWN: its offset ............ arrives, with the bytes that were sent
                              DELIVERED: it is in the log, and the worker is not following, or reads the files
"""

from collections import deque
from typing import TYPE_CHECKING

from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.served.reader import FileHistory
from rewindmq.engine.log.served.wire_frames import MOST_RECORD_BYTES
from rewindmq.engine.log.shared_contract import RecordTooLarge

if TYPE_CHECKING:
    from rewindmq.engine.log.served.client import ServedLog


class WorkerPartition(FileHistory):
    """A partition to read and to append to. `position`: the next offset that arrives; None: it is not followed."""

    def __init__(self, log: "ServedLog", number: int, reader: PartitionReader, durable_end: int) -> None:
        super().__init__(reader, durable_end)
        self.number = number
        self.position: int | None = None
        self.turn = 0  # counts pauses: what was read of the files before one is of no use behind it
        self.apart = False  # paused, or not caught up since: `read_to_end` does not wait for it
        self.reporting = False
        self.sent: deque[bytes] = deque()  # own records that are not known to be in the log yet
        self.own_at: dict[int, bytes] = {}  # own records that are in the log and arrive from the files
        self.gathered: list[bytes] = []
        self.gathered_bytes = 0
        self._log = log

    def append(self, key: bytes, value: bytes) -> None:
        """Send a record to the log. The key is of no use here: a partition has one log, and no compaction.

        Raises RecordTooLarge."""
        if len(value) > MOST_RECORD_BYTES:
            raise RecordTooLarge(f"a record of {len(value)} bytes is larger than the {MOST_RECORD_BYTES} of this log")
        self.sent.append(value)
        self._log.bytes_under_way += len(value)
        self._log.gather(self, value)

    @property
    def all_reported(self) -> bool:
        """Whether the log has told of every append so far."""
        return not self.sent

    def report(self, on: bool) -> None:
        """Tell the listener of each append when it is in the log, or no longer."""
        self.reporting = on

    def take_sent(self, count: int) -> list[bytes]:
        """The oldest own records, which are in the log now."""
        sent = self.sent
        values = [sent.popleft() for _ in range(count)]
        self._log.bytes_under_way -= sum(map(len, values))
        return values


class WorkerCounters:
    """A partition of counters, to append to."""

    def __init__(self, log: "ServedLog", number: int, name: str, opened_at: int) -> None:
        self.number = number
        self.name = name
        self.opened_at = opened_at
        self.under_way = 0
        self.gathered: list[tuple[bytes, bytes | None]] = []
        self._log = log

    @property
    def all_reported(self) -> bool:
        """Whether the log has taken every append so far."""
        return not self.under_way

    def append(self, key: bytes, value: bytes | None) -> None:
        """Send a record to the log; None: the key has no value any more."""
        self.under_way += 1
        self._log.gather_counters(self, key, value)
