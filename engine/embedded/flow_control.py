"""Flow control on the embedded log: publishing connections wait while many bytes wait for the disk.

While the disk is full, the log writes acks into its reserve (engine/log/embedded/reserve.py). An ack waits behind the
publishes before it. So all publishes that wait for the disk must fit into the reserve: otherwise no ack could become
durable before the disk has room again. A publish that is too large for the reserve is appended only when the disk has
room for all of it beside the reserve.
"""

from rewindmq.engine.log.contract import Log
from rewindmq.engine.runtime.flow_control import LARGE_BYTES, Flow


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
