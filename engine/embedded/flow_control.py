"""Flow control on the embedded log: publishing connections wait while many bytes wait for the disk, and large publishes
take turns.

While the disk is full, the log writes acks into its reserve (engine/log/embedded/reserve.py). An ack waits behind the
publishes before it. So all publishes that wait for the disk must fit into the reserve: otherwise no ack could become
durable before the disk has room again. A large publish is appended only when the disk has room for all of it beside the
reserve.

A partition has one order, so a record waits for all that was appended before it. Eight messages of 50 MB would take
the disk a second, and RocksDB gets bodies in the loop. So a large publish waits until those before it are durable.
Small publishes of other connections go ahead of it: each waits for one large message, and not for all.
"""

from rewindmq.engine.log.contract import Log
from rewindmq.engine.partition.flow_control import LARGE_BYTES, Flow

LARGE_AT_ONCE = 8_388_608  # bytes of large publishes that may wait for the disk together; or a single larger one


class DiskFlow(Flow):
    """Holds publishers back while the log is crowded."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    @property
    def full(self) -> bool:
        return self._log.crowded

    @property
    def crowded(self) -> bool:
        return self._log.crowded

    def has_room(self, size: int) -> bool:
        return size < LARGE_BYTES or self._log.has_room(size)

    def has_turn(self, size: int) -> bool:
        waiting = self._log.waiting_large_bytes
        return not waiting or waiting + size <= LARGE_AT_ONCE
