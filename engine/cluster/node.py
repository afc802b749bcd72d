"""A broker as one of many nodes on a log that they share (Kafka).

    arrived(batches) -> metadata, partitions fold them -> effects out -> confirms and answers for records read back

    NodeJoined  in the metadata log: this node begins. Its offset is the epoch, and all its sessions' ids begin with it
    NodeAlive   every second in the topic `nodes`: the node lives
    NodeLost    in the metadata log and in every queue partition: an epoch is over. The fold ends its sessions and
                ignores later events of it

Rules of this file
- Nodes do not talk to each other. Heartbeats show which nodes live. A node sends a beat when its last one has come back
  from the log. A node whose beats are missing between own beats of `node_timeout_ms` is lost (silences.py). While the
  log is away no beat comes back, so its absence makes no node lost.
- A node that reads that it is lost closes all its connections and joins again, under a new epoch.
- Duties of a partition are its owner's (Kafka's consumer group names it). During a change two nodes may act as owner,
  or none. So every duty is harmless when done twice, and a missed duty is found again from the state (`_look_after`,
  repair.py).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rewindmq.engine.cluster.awareness import Awareness
from rewindmq.engine.cluster.beats import Beats
from rewindmq.engine.cluster.counter_rounds import CounterRounds
from rewindmq.engine.cluster.flow_control import RoundTripFlow
from rewindmq.engine.cluster.metadata import ReadBackMetadata
from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.cluster.partition_pausing import PausedPartitions
from rewindmq.engine.cluster.policy_proofs import PolicyProofs
from rewindmq.engine.cluster.refusing_queues import RefusingQueues
from rewindmq.engine.cluster.repair import Repairs
from rewindmq.engine.cluster.resumption import PartitionResumption
from rewindmq.engine.cluster.silences import Silences
from rewindmq.engine.cluster.snapshot_export import SnapshotExports
from rewindmq.engine.config import VERSION, Config
from rewindmq.engine.host import eager
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.shared_contract import Arrived, SharedLog
from rewindmq.engine.partition.certainty import Certainty
from rewindmq.engine.partition.lifecycle import Keeper, Members, Place, mend_store, persist
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.engine.partition.snapshot_writer import MetadataSnapshots
from rewindmq.engine.partition.waypoint_writer import WaypointWriter
from rewindmq.projections.machine.data.delayed_order import exchange_of
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import MACHINE_VERSION, NewerHistory
from rewindmq.projections.rules.internal_queues import is_delay_queue
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import (
    CheckpointAsked,
    MachineUpgraded,
    NodeAlive,
    NodeLost,
    QueueDeclared,
    QueueRefuses,
    Tick,
)
from rewindmq.schemas.metadata_events import NodeJoined
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import BROKER, Route

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.log.kafka.replicas import KafkaReplicas

BEAT_SECONDS = 1.0
OUTDATED_MS = 60_000  # of counters; an owner that died has a successor before

logger = logging.getLogger(__name__)


class ClusterKeeper(Keeper):
    """The keeper of a broker on a shared log, and what it knows of the other nodes (`Nodes`).

    `failed` is called when the node cannot go on and must be stopped."""

    reads_back = True
    holds_log = gives_time = False
    flow: RoundTripFlow
    metadata: ReadBackMetadata

    def __init__(
        self,
        config: Config,
        log: SharedLog,
        store: StateStore,
        failed: Callable[[Exception], None],
    ) -> None:
        self.epoch = 0
        self.nodes = self
        self.joined = False
        self.log = log
        self.silences = Silences(config.node_timeout_ms / 1_000)
        self._log_time: tuple[int, float] | None = None  # the log's ms of the last own beat, and the loop's s of then
        self._config = config
        self._store = store
        self.snapshots = Snapshots(config.data / "snapshots")
        self.snapshots.remove_leftovers(log.metadata.name)
        self._offers = SnapshotExports(log.states, self.snapshots)
        self._failed = failed
        self._decoder = SharedDecoder()
        self._loop = asyncio.get_running_loop()
        self._arrived_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_reports: list[tuple[str, list[int]]] = []  # of appends, until this node knows that it is not lost
        # The broker's certainty waits for partitions in doubt, too, and these may wait for reports that are held.
        self._heard = Certainty(log.read_to_end, lambda: 0)
        self._duties: frozenset[str] = frozenset()  # the names of the partitions whose duties are this node's
        self._stopped = False
        self._broken = False  # the fold failed: the states differ from the log

    def start(self, broker: "Broker", metadata: ReadBackMetadata, partitions: list[ReadBackPartition]) -> None:
        """Look after this broker from now on.

        The constructor does not take these arguments: partitions and the metadata log report to the node, and so are
        made after it."""
        self._broker = broker
        self._repairs = Repairs(broker)
        self.metadata = metadata
        self._partitions = partitions
        self._by_name = {partition.name: partition for partition in partitions}
        self._metadata_snapshots = MetadataSnapshots(self.snapshots, metadata, self._config.metadata_snapshot_events)
        for partition in partitions:
            self.snapshots.remove_leftovers(partition.name)
        self._waypoints = WaypointWriter(self.snapshots, partitions, self._config.waypoint_events)
        self._asked = {partition.name: partition.machine.next_offset for partition in partitions}  # checkpoints
        self.flow = RoundTripFlow(list(partitions))
        self._awareness = Awareness(metadata.topology, partitions, lambda: self.epoch)
        self._refusing = RefusingQueues(self._by_name)
        self._beats = Beats(self._config.node, self.log, metadata, self._awareness, lambda: self.joined)
        self._resumption = PartitionResumption(self.log, self._store, self._config.data, self._config.archives_topics)
        self._paused = PausedPartitions(
            self._config.node,
            self._config.standbys,
            self.log,
            partitions,
            self._bring_near,
            lambda: broker.sessions.by_id.values(),
            broker.router.queues_changed,
            self.fail,
        )
        self._policy_proofs = PolicyProofs(broker, partitions, self._awareness, self.log.read_to_end)
        self._counter_rounds = CounterRounds(
            self.log.counters,
            partitions,
            broker.homes,
            self.log.identity,
            self._config.node,
            broker.host.loop_share,
            lambda: self._stopped or not self.joined or broker.turns.blocked is not None,
            self._policy_proofs.proven,
        )

    def kick(self) -> None:
        self.log.flush()

    # -- arrivals -----------------------------------------------------------------------------------------------------

    def arrived(self, batches: list[Arrived]) -> None:
        """Fold records that came back from the log, and perform their effects."""
        if self._stopped or self._broken:
            return
        self._doubt_after_silence()
        with self._folding():
            for batch in batches:
                partition = self._by_name.get(batch.partition)
                if partition is not None:
                    partition.read_back(batch)
                elif batch.partition == self.metadata.name:
                    self.metadata.read_back(batch)
                elif batch.partition == self.log.nodes.name:
                    self._note_beats(batch)
                else:
                    self._counter_rounds.arrived(batch)
        self._end_turn()

    @contextmanager
    def _folding(self) -> Iterator[None]:
        """Stop the node if the fold inside fails: its state would differ from the log."""
        try:
            yield
        except Exception as error:
            if isinstance(error, NewerHistory | LogError):  # it says what to do
                logger.error("%s", error)
            else:
                logger.exception("the fold failed")
            self._broken = True
            self._broker.turns.stop()
            self.fail(error)

    def _end_turn(self) -> None:
        if not self._broken:
            self._broker.turns.end()
            self._broker.turns.landed()

    def _doubt_after_silence(self) -> None:
        """After a silence in which not even own beats came back, keep arrivals until this node has caught up with the
        log (`doubt`): others may have declared it lost, and their consumers may have its messages."""
        now, before = self._loop.time(), self._arrived_at
        self._arrived_at = now
        if self.joined and now - before > self._config.node_timeout_ms / 2_000:
            for partition in self._partitions:
                partition.doubt()

    def delivered(self, name: str, offsets: list[int]) -> None:
        """Own records are in the log, of a partition that does not come back.

        After a long silence, or while its own beat does not come back, nothing is confirmed before this node has read
        whether it was declared lost: its queues may have moved to other partitions since."""
        if self._stopped or self._broken or not self._by_name[name].awaits_reports:
            return
        if self._may_be_lost or self._held_reports:
            self._held_reports.append((name, offsets))
            if len(self._held_reports) == 1:
                self._begin(self._release_reports())
            return
        with self._folding():
            self._by_name[name].delivered(offsets)
        self._end_turn()

    @property
    def _may_be_lost(self) -> bool:
        """Return True if nothing, or no beat of this node, came for so long that others may soon declare it lost."""
        silence = max(self._loop.time() - self._arrived_at, self._beats.waits)
        return self.joined and silence > self._config.node_timeout_ms / 2_000

    @property
    def is_waited_for(self) -> bool:
        return self.joined and not self._may_be_lost

    async def _release_reports(self) -> None:
        await self._heard.wait()
        held, self._held_reports = self._held_reports, []
        with self._folding():
            for name, offsets in held:
                self._by_name[name].delivered(offsets)
        self._end_turn()

    def trouble(self, why: str | None) -> None:
        """Report why appends do not reach the log; None: they do again."""
        self._broker.turns.problem("log", why)

    def fail(self, error: Exception) -> None:
        """Report that the node cannot continue."""
        if not self._stopped:
            self._failed(error)

    # -- joining, and being lost ---------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Begin an epoch. Clients may come when this returns."""
        await asyncio.gather(
            *(partition.ask(BROKER, Tick()) for partition in self._partitions if partition.current)
        )  # returns when this node has caught up
        topology = self.metadata.topology
        await self._begin_epoch()
        await asyncio.gather(*(partition.folded() for partition in self._partitions))
        if self.epoch not in topology.nodes:
            await self._begin_epoch()
        for partition in self._partitions:
            partition.epoch = self.epoch
            partition.used_at = 0.0  # by no client of this epoch
            if partition.current:  # else its owner does it
                self._append_ended(partition)
        self.joined = True
        self._beats.begin()
        if self._timer is not None:
            self._timer.cancel()
        logger.info(
            "node %s joined, epoch %d; nodes: %s",
            self._config.node,
            self.epoch,
            ", ".join(joined.node for joined in topology.nodes.values()),
        )
        self._beat()
        self._counter_rounds.start()

    async def _begin_epoch(self) -> None:
        joined = NodeJoined(self._config.node, VERSION, MACHINE_VERSION, self._config.address, len(self._partitions))
        self.epoch = await self.metadata.ask(BROKER, joined)
        while self.epoch not in self.metadata.topology.nodes:  # others declared it lost before it read its NodeJoined
            self.epoch = await self.metadata.ask(BROKER, joined)

    def renew_epoch(self) -> None:
        """End the epoch as if the node had been lost, and join again: all ids of the epoch (16 million) are used."""
        self.metadata.append(BROKER, NodeLost(self._config.node, self.epoch, "restarted"))

    def nodes_changed(self) -> None:
        """Check, after a NodeJoined or NodeLost, whether this node is still in the metadata log."""
        nodes = self.metadata.topology.nodes
        if not self.joined or self.epoch in nodes:
            return
        if any(joined.node == self._config.node for joined in nodes.values()):
            self._drop_clients("another process has taken this node's name")
            self.fail(
                LogError(f"another process joined as node {self._config.node}: each node needs a name of its own")
            )
        else:
            self.node_lost(self.epoch)

    def node_lost(self, epoch: int) -> None:
        """Close this node's connections if this epoch is its own: others have its clients' messages already."""
        if epoch == self.epoch and self.joined:
            logger.error("node %s was declared lost: it closes its connections and joins again", self._config.node)
            self._drop_clients("the node was cut off from the log for too long, and was declared lost")
            self._begin(self.join())

    def _drop_clients(self, reason: str) -> None:
        self.joined = False
        sessions = self._broker.sessions
        for session in list(sessions.by_id.values()):
            if session.close is not None:
                session.close(reason)
            else:
                sessions.close(session)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine; what is left of it when it waits ends with the node."""
        task = eager.begin(work)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _beat(self) -> None:
        if self._stopped or not self.joined:
            return
        if not self._beats.waiting:
            self._beats.send()
        # First, so that an error below does not stop the beats.
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        self._look_after()
        self._broker.turns.end()

    def _note_beats(self, batch: Arrived) -> None:
        alive = self.metadata.topology.nodes
        for time_ms, value in zip(batch.timestamps_ms, batch.values, strict=True):
            try:
                event = self._decoder.decode(value)[2]
            except UndecodableRecord:
                continue
            if isinstance(event, NodeAlive):
                if event.epoch == self.epoch and self._beats.came_back():
                    self._log_time = time_ms, self._loop.time()
                    self.flow.learn(self._beats.took)
                    self.silences.missed(alive, self._loop.time())
                self.silences.heard(event.epoch)
                self._awareness.note_beat(event)
            elif isinstance(event, QueueRefuses):
                self._refusing.note(event)
                self._broker.router.invalidate()

    @property
    def read_back_seconds(self) -> float:
        return max(self._beats.took, self._beats.waits)

    def age_ms(self, time_ms: int) -> int:
        """Return how long ago the log gave this time, by the log's own clock as this node's last beat shows it."""
        if self._log_time is None:
            return 0
        log_ms, then = self._log_time
        return max(0, log_ms + int((self._loop.time() - then) * 1_000) - time_ms)

    def is_outdated(self, time_ms: int) -> bool:
        """Return True if the log gave this time so long ago that no owner still publishes, although the log works."""
        return self._log_time is not None and self._log_time[0] - time_ms > OUTDATED_MS

    # -- modes --------------------------------------------------------------------------------------------------------

    async def enter(self, partition: ReadBackPartition) -> None:
        await self._paused.enter(partition)
        self._refusing.forget_folded()
        self._upgrade(partition)
        await partition.folded()

    async def _bring_near(self, partition: ReadBackPartition) -> None:
        await self._resumption.bring_near(partition)
        self._asked[partition.name] = max(self._asked[partition.name], partition.next_offset)

    def decides(self, partition: ReadBackPartition, route: Route) -> bool:
        for name in route.queues:
            queue = partition.machine.queue(route.vhost, name)
            if queue is None or self._broker.effective_policies.may_refuse(queue):
                return True
            if (route.vhost, name) in self._refusing:
                return True
        return False

    def queue_declared(self, partition: ReadBackPartition, offset: int, event: QueueDeclared) -> None:
        queue = partition.machine.queue(event.vhost, event.queue)
        if partition.owned and queue is not None and queue.queue_id == offset:
            self._beats.tell_refusing(partition.name, queue)

    async def until_known(self, offset: int) -> None:
        await self._awareness.until_known(offset)

    async def add_partitions(self, partitions: int, only_ask: bool) -> None:
        await self.log.add_partitions(partitions, only_ask)

    def show_soon(self, offset: int) -> None:
        self._beats.show_soon(offset)

    def is_declared(self, vhost: str, queue: str) -> bool:
        if self._broker.homes.of(vhost, queue).machine.queue(vhost, queue) is not None:
            return True
        topology = self._broker.topology
        if is_delay_queue(queue):
            return (vhost, exchange_of(queue)) in topology.exchanges
        return any(True for _ in topology.bindings_to(vhost, "queue", queue))

    async def read_to_end(self) -> None:
        await self.log.read_to_end()
        for partition in self._partitions:
            if partition.in_doubt:
                await partition.folded()

    def behind(self, partition: PartitionReading) -> int:
        return max(0, self.log.ends().get(partition.name, 0) - partition.machine.next_offset)

    # -- duties -------------------------------------------------------------------------------------------------------

    def duties_changed(self, names: frozenset[str]) -> None:
        """Take the duties of these partitions, and leave all others."""
        self._duties = names
        for partition in self._partitions:
            owned = partition.name in names
            if owned and not partition.owned:
                self._begin(self._take_duties(partition))
            elif partition.owned and not owned:
                logger.info("%s: its duties are another node's now", partition.name)
                partition.owned = False
                self._broker.forwarder.drop(partition)
        if not self._stopped:
            self._broker.turns.end()

    async def _take_duties(self, partition: ReadBackPartition) -> None:
        """Become the owner of a partition, once it is current."""
        await self._paused.enter(partition)
        if partition.name not in self._duties or partition.owned or self._stopped:
            return
        logger.info("%s: its duties are this node's now", partition.name)
        partition.own()
        self._repairs.look_at_everything()
        for queue in list(partition.machine.outboxes()):
            self._broker.forwarder.recover(partition, queue)
        for queue in list(partition.machine.by_name.values()):  # the owner of before may have died meanwhile
            self._beats.tell_refusing(partition.name, queue)
        self._counter_rounds.soon()
        self._broker.turns.end()

    def _look_after(self) -> None:
        """Do the owner's duties of a heartbeat."""
        self._declare_lost()
        for name in self._refusing.crowded():
            self._begin(self.enter(self._by_name[name]))
        self._paused.look(joined.node for joined in self.metadata.topology.nodes.values())
        for partition in self._partitions:
            if partition.owned:
                self._append_ended(partition)
                self._upgrade(partition)
                if partition.machine.next_offset - self._asked[partition.name] >= self._config.snapshot_events:
                    self._asked[partition.name] = partition.machine.next_offset
                    partition.append(BROKER, CheckpointAsked())
        self._metadata_snapshots.take_if_due(self._loop.call_soon)
        self._repairs.look()
        self._policy_proofs.look()

    def _declare_lost(self) -> None:
        """Declare silent nodes lost, if this node is the oldest one that is heard."""
        nodes = self.metadata.topology.nodes
        lapsed = self.silences.lapsed(nodes)
        if not lapsed or min(epoch for epoch in nodes if epoch not in lapsed) != self.epoch:
            return
        for epoch, silence in lapsed.items():
            logger.warning("node %s was silent for %s: it is lost", nodes[epoch].node, silence)
            lost = NodeLost(nodes[epoch].node, epoch, "lapsed")
            self.metadata.append(BROKER, lost)
            for partition in self._partitions:  # at once, because the lost node may be their owner
                partition.lost_appended[epoch] = None
                partition.append(BROKER, lost)
            self.silences.heard(epoch)  # not a second time at once

    def _append_ended(self, partition: ReadBackPartition) -> None:
        """Append the ends of epochs to the partition if the metadata log has them and the partition does not."""
        known = partition.machine.lost_epochs
        for epoch, node in self.metadata.topology.ended.items():
            if epoch not in known and epoch not in partition.lost_appended:
                partition.lost_appended[epoch] = None
                reason = "restarted" if node == self._config.node else "lapsed"
                partition.append(BROKER, NodeLost(node, epoch, reason))

    def _upgrade(self, partition: ReadBackPartition) -> None:
        """Let a partition follow the machine version of the history."""
        if partition.machine.machine_version < self.machine_version:
            partition.append(BROKER, MachineUpgraded(self.machine_version))

    @property
    def machine_version(self) -> int:
        return self.metadata.topology.machine_version

    def upgrade(self) -> None:
        for partition in self._partitions:  # also a paused one: this node must not write to it as before
            self._begin(self.enter(partition))

    def queue_gone(self, partition: Partition, queue: Queue) -> None:
        if partition.owned:
            self._begin(self.metadata.unbind_queue(BROKER, queue))

    def checkpoint_asked(self, partition: ReadBackPartition) -> None:
        """Take a snapshot at this offset: the log asked every node for its digest here."""
        self._asked[partition.name] = partition.machine.next_offset
        try:
            self.snapshots.take(partition.machine)
        except OSError as error:
            logger.error("%s: no snapshot could be written: %s", partition.name, error)

    def checkpoint_claimed(self, partition: ReadBackPartition, offset: int, claim: int) -> None:
        """Offer the snapshot at `offset` to other nodes. `claim`: where the log has this node's claim of its digest."""
        self._offers.claimed(partition.index, partition.name, offset, claim)

    def replicas(self) -> "KafkaReplicas | None":
        config = self._config
        if config.kafka is None:  # the shared log of a simulation has none
            return None
        from rewindmq.engine.log.kafka.clients import KafkaClients
        from rewindmq.engine.log.kafka.replicas import KafkaReplicas

        return KafkaReplicas(KafkaClients(config.kafka, dict(config.kafka_settings)), config.kafka_prefix)

    def members(self, partition: PartitionReading) -> Members:
        for found in self.log.placement():
            if found.partition == partition.name:
                return Members(found.leader, found.replicas, found.in_sync)
        return Members("", (), ())

    def place(self, partition: PartitionReading) -> Place:
        """Return the nodes that are near a partition. The owner of a partition says in its rounds of counters which
        node it is."""
        owner: str | None = self._config.node if partition.owned else None
        if owner is None and (table := self._by_name[partition.name].counter_table) is not None:
            others = {joined.node for epoch, joined in self.metadata.topology.nodes.items() if epoch != self.epoch}
            owner = table.owner if table.owner in others else None
        return Place(owner, self._paused.folded_at(partition, owner))

    def take_snapshots(self) -> None:
        """Take the waypoints that are due. The log says where every node takes a snapshot (`checkpoint_asked`)."""
        self._waypoints.take_if_due(self._loop.call_soon)

    def mend_store(self) -> None:
        if self._store.failed is not None and not self._resumption.busy and self._store.has_room():
            self._broker.turns.end()
            mend_store(self._store, self._partitions)

    def written_state(self) -> StateStore:
        self._broker.turns.end()
        if self._stopped or self._broken or not all(partition.at_rest for partition in self._partitions):
            raise StoreError("the node is stopping")
        if self._resumption.busy:
            raise StoreError("a state is being replaced by a newer one")
        try:
            for partition in self._partitions:
                partition.write_all()
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(f"the state can't be written: {error}") from error
        return self._store

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Say good-bye in the log, so that other nodes need not miss this one. Its sessions are closed already."""
        turns = self._broker.turns
        if self.joined:
            lost = NodeLost(self._config.node, self.epoch, "stopped")
            for partition in self._partitions:
                partition.append(BROKER, lost)
            self.metadata.append(BROKER, lost)
        self._stopped = True
        self.joined = False
        turns.stop()
        self._waypoints.stop()
        self._offers.stop()
        self._paused.stop()
        self._awareness.stop()
        self._beats.stop()
        self._counter_rounds.stop()
        self._repairs.stop()
        self._policy_proofs.stop()
        self._broker.certainty.stop()
        self._heard.stop()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        try:
            self._resumption.stop()
            self.log.close()
        finally:
            for partition in self._partitions if not self._broken else ():
                partition.carry_out()
                if partition not in self._resumption.busy:  # the store has a newer state, or none
                    persist(self._store, partition)
            if not self._broken:
                self._metadata_snapshots.take_now()
            self._store.close()
