"""How a broker's life is kept in the log: alone on an embedded log (embedded/lifecycle.py), or as one of many nodes
(cluster/node.py)."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rewindmq.engine.runtime.flow_control import Flow
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.store.repair import mend
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.values import Actor

if TYPE_CHECKING:
    from rewindmq.engine.runtime.partition import Partition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Members:
    """Who holds a partition, as RabbitMQ names it for quorum queues: node names, or Kafka's brokers."""

    leader: str
    members: tuple[str, ...]
    online: tuple[str, ...]


class Keeper(Protocol):
    epoch: int  # ids of sessions and consumers begin with it; unique in the whole history

    joined: bool  # clients may come
    # The log is shared with other nodes, and only what is read back from it is folded. So everything that is folded is
    # durable, and an answer to a client need not wait. But a tx.commit is not atomic: when this node dies, Kafka may
    # have taken some of its records and not the others.
    reads_back: bool

    @property
    def read_back_seconds(self) -> float:
        """How long it takes into the log and back; 0 where nothing has to come back."""

    def kick(self) -> None:
        """At the end of a turn: begin to make durable what was appended."""

    @property
    def flow(self) -> Flow:
        """Holds publishers up while enough is on its way into the log."""

    def take_snapshots(self) -> None:
        """Take the snapshots that are due."""

    def mend_store(self) -> None:
        """After RocksDB refused a write: make the store good again."""

    def renew_epoch(self) -> None:
        """All ids of this epoch are used up: begin another."""

    @property
    def read_to_end(self) -> Callable[[], Awaitable[None]] | None:
        """Wait until all that is in the log now is folded; LogError when the log does not say. None: it always is."""

    def queue_gone(self, partition: "Partition", queue: Queue) -> None:
        """A queue is gone: its bindings have to go."""

    def members(self, partition: "Partition") -> Members: ...

    def behind(self, partition: "Partition") -> int:
        """How many offsets of the log are still to be folded, as far as is known."""

    def written_state(self) -> StateStore | None:
        """The state store, now that all is written to it that is folded, for a copy of it; None where a copy is of no
        use without the log. StoreError when it can't be written."""

    def set_clock(self, first_ms: int, actor: Actor, event: ClockSet) -> None:
        """Timestamps go on from another time, `first_ms` being that of the event itself; in every partition. Of a log
        that gives the time itself: never asked. LogError: the disk does not take it, and nothing is changed."""

    def stop(self) -> None:
        """Everything durable, told and persisted. LogError when that can't be; what is confirmed is safe."""


def mend_store(store: StateStore, partitions: "Sequence[Partition]") -> None:
    """Make the store good again after a failed write, with every partition at rest. Fails as `mend`."""
    if not all(partition.at_rest for partition in partitions):
        return  # dead letters go round: at the next try, perhaps, they do not
    folded = mend(store, [(partition.history, partition.projector) for partition in partitions])
    for partition in partitions:
        partition.mended()
    logger.warning("%s: opened again after a failed write, and %d events folded again", store.path, folded)


def persist(store: StateStore, partition: "Partition") -> None:
    """At a clean stop: the partition's state is written and flushed. If RocksDB refuses, the log has everything."""
    try:
        partition.persist_all()
    except Exception as error:  # rocksdict knows no narrower class
        if store.failed is None:
            raise
        logger.error("%s: the state can't be written, the next start folds it from the log: %s", partition.name, error)
