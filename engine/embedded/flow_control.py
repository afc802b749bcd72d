"""Flow control on the embedded log: publishing connections wait while many bytes wait for the disk, and large publishes
take turns.

While the disk is full, the log writes acks into its reserve (engine/log/embedded/reserve.py). Because an ack waits for
the publishes before it, all publishes that wait for the disk must fit into the reserve; otherwise no ack could become
durable before the disk has room again. A large publish is appended only when the disk has room for all of it besides
the reserve.

A partition has one order, so a record waits for all earlier ones. Eight messages of 50 MB would occupy the disk for a
second, and RocksDB gets bodies in the loop. So a large publish waits until the ones before it are durable. Small
publishes of other connections overtake it, so each waits for one large message, not for all.
"""

from rewindmq.engine.log.contract import Log
from rewindmq.engine.partition.flow_control import LARGE_BYTES, Flow

LARGE_AT_ONCE = 8_388_608  # bytes of large publishes that may wait for the disk together, unless a single one is larger


class DiskFlow(Flow):
    """A flow that holds publishers back while the log is crowded."""

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
