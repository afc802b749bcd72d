"""Flow control on the embedded log: connections that publish wait while many bytes wait for the disk.

While the disk is full, the log writes acks into its reserve (engine/log/embedded/reserve.py). An ack stands behind the
publishes that came before it. So the publishes that wait for the disk at any moment must fit into the reserve: were
there more, no ack would become durable before there is room again. A publish that is too large for that is appended
only when the disk has room for all of it beside the reserve.
"""

from rewindmq.engine.log.contract import Log
from rewindmq.engine.runtime.flow_control import LARGE_BYTES, Flow


class DiskFlow(Flow):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    @property
    def full(self) -> bool:
        return self._log.crowded

    def has_room(self, size: int) -> bool:
        return size < LARGE_BYTES or self._log.has_room(size)
