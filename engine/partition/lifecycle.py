"""A broker's two relations to its log: it keeps its life there (`Keeper`), and may share it with other nodes (`Nodes`).

A broker runs alone on an embedded log (embedded/lifecycle.py), or as one of many nodes (cluster/node.py).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rewindmq.engine.errors import ReadOnly
from rewindmq.engine.partition.flow_control import Flow
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.store.repair import mend
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.values import Actor

if TYPE_CHECKING:
    from rewindmq.engine.log.kafka.replicas import KafkaReplicas
    from rewindmq.engine.partition.partition import Partition
    from rewindmq.engine.partition.reading import PartitionReading

MADE_ANEW = (
    "%s: RocksDB found damage in its files (%s): the state was made anew from memory, with %d bodies. %d bodies could"
    " not be read, and come from the log. Look for the cause: the disk may also change bytes of the log"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a partition, as RabbitMQ names them for quorum queues: node names, or Kafka's brokers."""

    leader: str
    members: tuple[str, ...]
    online: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionNodes:
    """The nodes that are near a partition, by name.

    `owner` has its duties (timers, dead letters); None: this node does not know it. `folded_at`: the nodes that fold it
    whatever their clients do."""

    owner: str | None
    folded_at: tuple[str, ...]


class Nodes(Protocol):
    """The nodes that share the log with this broker. A broker that is alone on its log has a `LoneNode`."""

    joined: bool  # clients may come
    # Other nodes share the log, and this node folds only the records that it reads back. So every folded event is
    # durable, and an answer to a client need not wait. But a tx.commit is not atomic: if this node dies, Kafka may
    # have taken only some of its records.
    reads_back: bool

    @property
    def is_waited_for(self) -> bool:
        """Return True if other nodes, before a queue moves, wait for the events that this one appends.

        They do not wait for a node that they declared lost, or are about to: it may not know where queues are."""

    @property
    def read_back_seconds(self) -> float:
        """The time, in seconds, that a record takes into the log and back; 0 if no record must come back."""

    @property
    def read_to_end(self) -> Callable[[], Awaitable[None]] | None:
        """A function that waits until all records of the log are folded; None: they always are.

        LogError: the log does not answer."""

    async def until_known(self, offset: int) -> None:
        """Wait until every node decides by the metadata log up to this offset."""

    def show_soon(self, offset: int) -> None:
        """Let other nodes know without delay that this one decides by the metadata log up to this offset."""

    def replicas(self) -> "KafkaReplicas | None":
        """Return the replicas of the log's partitions, which can be moved; None: there is one of everything."""

    def members(self, partition: "PartitionReading") -> Members:
        """Return the members of a partition."""

    def place(self, partition: "PartitionReading") -> PartitionNodes:
        """Return the nodes that are near a partition."""

    def behind(self, partition: "PartitionReading") -> int:
        """Return how many known offsets of the log are not folded yet."""


class LoneNode:
    """The only node on its log: it has folded everything, and waits for nobody."""

    joined = True
    is_waited_for = True
    reads_back = False
    read_to_end = None
    read_back_seconds = 0.0

    def __init__(self, name: str) -> None:
        self._name = name

    async def until_known(self, offset: int) -> None:
        """Return at once: there is no other node."""

    def show_soon(self, offset: int) -> None:
        """Do nothing: there is no other node."""

    def replicas(self) -> None:
        """Return None: there is one of everything."""

    def members(self, partition: "PartitionReading") -> Members:
        """Return this node alone."""
        return Members(self._name, (self._name,), (self._name,))

    def place(self, partition: "PartitionReading") -> PartitionNodes:
        """Return this node alone."""
        return PartitionNodes(self._name, (self._name,))

    def behind(self, partition: "PartitionReading") -> int:
        """Return 0: every event is folded."""
        return 0


class Keeper(ABC):
    """Keeps a broker's life in the log. The defaults are those of a broker that writes nothing."""

    epoch: int  # ids of sessions and consumers begin with it; unique in the whole history
    nodes: Nodes
    flow: Flow  # holds publishers back while enough is on its way into the log
    holds_log = True  # the log is on this machine's disk, where its size is measured
    gives_time = True  # this broker gives records their time; otherwise the log does

    def kick(self) -> None:  # noqa: B027
        """Begin to make the appended events durable. The broker calls it at the end of a turn."""

    def take_snapshots(self) -> None:  # noqa: B027
        """Take the snapshots that are due."""

    def mend_store(self) -> None:  # noqa: B027
        """Repair the store after RocksDB refused a write."""

    @abstractmethod
    def renew_epoch(self) -> None:
        """Begin another epoch: all ids of this one are used."""

    async def add_partitions(self, partitions: int, only_ask: bool) -> None:
        """Give the log so many queue partitions, which brokers work with from their next start on.

        `only_ask`: find out whether that can be done. LogError: it cannot, or the log has more already."""
        raise ReadOnly

    def upgrade(self) -> None:  # noqa: B027
        """Let every partition follow the machine version that the metadata log says."""

    def queue_gone(self, partition: "Partition", queue: Queue) -> None:  # noqa: B027
        """Remove the bindings of a queue that is gone."""

    def written_state(self) -> StateStore | None:
        """Write all folded state to the state store, and return the store for a copy.

        None: a copy is useless without the log. StoreError: the store cannot be written."""
        return None

    def set_clock(self, first_ms: int, actor: Actor, event: ClockSet) -> None:
        """Continue the timestamps of every partition from another time.

        `first_ms` is the timestamp of the event itself. It is called only where this broker `gives_time`. LogError: the
        disk refuses the event, and nothing changes."""
        raise ReadOnly

    @abstractmethod
    def stop(self) -> None:
        """Make all events durable, send the last answers, and write the state.

        LogError: that failed. Confirmed publishes are safe."""


def mend_store(store: StateStore, partitions: "Sequence[Partition]") -> None:
    """Repair the store after a failed write, with every partition at rest. Fails as `mend`."""
    if not all(partition.at_rest for partition in partitions):
        return  # dead letters are on their way; the next try may find none
    if store.damaged:
        damage = store.failed
        written, missing = store.make_anew([partition.projector for partition in partitions])
        for partition in partitions:
            partition.mended()
        logger.error(MADE_ANEW, store.path, damage, written, missing)
        return
    folded = mend(store, [(partition.history, partition.projector) for partition in partitions])
    for partition in partitions:
        partition.mended()
    logger.warning("%s: repaired after a failed write, with %d events folded again", store.path, folded)


def persist(store: StateStore, partition: "Partition") -> None:
    """Write and flush the partition's state at a clean stop. If RocksDB refuses, the log has everything."""
    try:
        partition.persist_all()
    except Exception as error:  # rocksdict knows no narrower class
        if store.failed is None:
            raise
        logger.error("%s: the state can't be written. The next start folds it from the log: %s", partition.name, error)
