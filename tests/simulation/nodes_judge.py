"""The judgement over a history of several nodes: its log is folded afresh, and all that anybody saw is held against it.

What must hold, however nodes were killed, cut off, declared lost, and duties moved:
- digests that any node claims, live, by checkpoints in the log, or of its topology, are those of the refold at the same
  offset: so all nodes fold the same;
- the effects that a node carried out are, from where it began, the refold's, in order; fewer only if it did not end
  cleanly; the same for what each consumer received;
- each message is in one place at a time, leaves it once, comes again only after it came back, and flagged (`Account`,
  as for a single broker: counted, not by the machine's counters);
- a publish that was confirmed is in the log once and was folded, or refused if its publisher got a nack; none from a
  lost life was confirmed. A client that stayed to the end got its answers;
- the records of a client are in each partition in the order in which it published;
- every dead letter is taken in by each target at most once, and exactly once by the target that is always there, under
  any owner;
- a lost node or client holds nothing: sessions, queues and consumers are of lives that are not over;
- Ticks are few beside the deadlines that passed.
"""

from collections import defaultdict

from rewindmq.engine.log.simulated.shared import HistoryPartition
from rewindmq.projections.machine.data.effects import Effect, Quarantine
from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Checkpointed, NodeLost, Published, Tick
from rewindmq.schemas.metadata_events import NodeJoined
from rewindmq.schemas.single_object import FramedDecoder
from rewindmq.schemas.values import EPOCH_SHIFT
from tests.simulation.clients import DEAD
from tests.simulation.judge import Account, check_letters
from tests.simulation.nodes_connections import Publish, Taker
from tests.simulation.nodes_world import Life, World

IDLE_TICKS = 40  # for which nothing was due, in a history of this size; one more for each that something was


class Refold(Account):
    """One partition of a shared log."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.digests: dict[int, str] = {}  # by the offset behind the last event
        self.by_body: dict[bytes, list[int]] = defaultdict(list)  # offsets of publishes, those of letters left out
        self.void: dict[int, str] = {}  # quarantined, and why
        self.ticks = 0
        self.idle_ticks = 0
        self.checkpoints = 0
        self.lapsed = 0

    def fold(self, partition: HistoryPartition, wanted: set[int]) -> None:
        machine, decoder = self.machine, FramedDecoder()
        todo = sorted(wanted)
        for offset, timestamp_ms, value in zip(
            partition.offsets, partition.timestamps_ms, partition.values, strict=True
        ):
            while todo and todo[0] <= offset:
                self.digests[todo.pop(0)] = machine.digest()
            try:
                _, actor, event = decoder.decode(value)
            except UndecodableRecord:
                machine.skip(offset)
                continue
            if isinstance(event, Checkpointed):
                self.checkpoints += 1
                assert event.digest == self.digests[event.offset + 1], (
                    f"{event.node} claims another state at {machine.partition}/{event.offset}"
                )
            self.lapsed += isinstance(event, NodeLost) and event.reason == "lapsed"
            if isinstance(event, Tick):
                due = machine.deadline_ms()
                self.ticks += 1
                self.idle_ticks += due is None or due > timestamp_ms
            effects: list[Effect] = []
            machine.apply(offset, timestamp_ms, actor, event, effects)
            lost = any(isinstance(each, Quarantine) and each.reason.startswith(NODE_LOST) for each in effects)
            if lost:
                self.void[offset] = NODE_LOST
            if isinstance(event, Published) and event.origin is None and not lost:
                self.by_body[event.body].append(offset)
            if lost and isinstance(event, Published):
                self.void_publish(offset, event, effects)
            else:
                self.happened(offset, event, effects)
        for offset in todo:
            self.digests[offset] = machine.digest()

    def void_publish(self, offset: int, event: Published, effects: list[Effect]) -> None:
        """From a life that was over: time passed with it, and nothing else happened."""
        self.happened(offset, Tick(), effects)
        self.by_body[event.body].append(offset)


def judge(world: World, publishes: list[Publish], takers: list[Taker]) -> list[Refold]:
    """AssertionError says what is wrong. The log is healed and drained, the nodes are stopped."""
    accounts = []
    for index, partition in enumerate(world.history.queues):
        account = Refold(index)
        claims = [claim for claim in world.record.claims if claim.partition == index]
        account.fold(partition, {claim.offset for claim in claims} | checkpoints_of(partition))
        for claim in claims:
            expected = account.digests[claim.offset]
            assert claim.digest == expected, f"{claim.who} is not at {partition.name}/{claim.offset} what the log says"
        account.machine.validate()
        account.check_what_is_left()
        accounts.append(account)
    joins = check_topology(world)
    check_publishes(accounts, publishes)
    check_order(accounts, publishes)
    for life in world.record.lives:
        check_performed(accounts, life)
    check_receipts(accounts, takers)
    check_letters(accounts, DEAD)
    check_lost_hold_nothing(world, accounts)
    joins += len(world.record.lives)  # each begins with a Tick; and some do not come to join
    for account in accounts:
        told = f"{account.idle_ticks} of {account.ticks} ticks in partition {account.index} came for nothing"
        assert account.idle_ticks <= IDLE_TICKS + joins + account.ticks - account.idle_ticks, told
    return accounts


def checkpoints_of(partition: HistoryPartition) -> set[int]:
    decoder = FramedDecoder()
    found = set()
    for value in partition.values:
        try:
            event = decoder.decode(value, bodies=False)[2]
        except UndecodableRecord:
            continue
        if isinstance(event, Checkpointed):
            found.add(event.offset + 1)
    return found


def check_topology(world: World) -> int:
    """How often a node joined."""
    log, decoder, topology = world.history.metadata, FramedDecoder(), Topology()
    digests = {0: topology.digest()}
    wanted = {claim.offset for claim in world.record.claims if claim.partition == -1}
    joins = 0
    for offset, timestamp_ms, value in zip(log.offsets, log.timestamps_ms, log.values, strict=True):
        try:
            _, actor, event = decoder.decode(value)
        except UndecodableRecord:
            continue
        joins += isinstance(event, NodeJoined)
        topology.apply(offset, timestamp_ms, actor, event)
        if offset + 1 in wanted:
            digests[offset + 1] = topology.digest()
    for claim in world.record.claims:
        if claim.partition == -1:
            told = f"{claim.who} has not at metadata/{claim.offset} the topology that the log says"
            assert claim.digest == digests[claim.offset], told
    return joins


def check_publishes(accounts: list[Refold], publishes: list[Publish]) -> None:
    for publish in publishes:
        for place, index in enumerate(publish.places):
            account = accounts[index]
            found = account.by_body.get(publish.body, [])
            who = f"{publish.body!r} of {publish.client.life.name} in partition {index}"
            assert len(found) <= 1, f"{who} is in the log at {found}"
            if place not in publish.answers:
                assert publish.client.closed or publish.client.life.ended, f"{who} was never answered"
                continue
            assert found, f"{who} was confirmed, and is not in the log"
            assert found[0] not in account.void, f"{who} was confirmed, and ignored: its life was over"
            refused = found[0] in account.refused
            assert publish.answers[place] == refused, f"{who}: its publisher was told a lie"


def check_order(accounts: list[Refold], publishes: list[Publish]) -> None:
    last: dict[tuple[int, int], int] = {}  # session, partition -> offset
    for publish in publishes:
        for index in publish.places:
            for offset in accounts[index].by_body.get(publish.body, []):
                key = (publish.client.session.session_id, index)
                assert last.get(key, -1) < offset, f"{publish.body!r} overtook what was published before it"
                last[key] = offset


def check_performed(accounts: list[Refold], life: Life) -> None:
    for index, times in enumerate(life.began):
        effects = accounts[index].effects
        ends = [first for _, first in times[1:]] + [len(life.performed[index])]
        for (began, first), end in zip(times, ends, strict=True):
            expected = [row for offset in sorted(effects) if offset >= began for row in effects[offset]]
            seen = life.performed[index][first:end]
            where = f"{life.name}, partition {index} from {began}"
            for at, (one, other) in enumerate(zip(seen, expected, strict=False)):
                assert one == other, f"{where}: effect {at} was {one}, by the log {other}"
            assert len(seen) <= len(expected), f"{where}: done too much: {seen[len(expected) :][:5]}"


def check_receipts(accounts: list[Refold], takers: list[Taker]) -> None:
    received: dict[tuple[int, int], list[Taker]] = defaultdict(list)
    for taker in takers:
        if taker.partition is not None:  # else it never was attached, or its get was never answered
            received[taker.partition.index, taker.consumer_id].append(taker)
    for (index, consumer), sharing in received.items():
        rows = [row for taker in sharing for row in taker.rows]
        expected = accounts[index].received[consumer]
        client = sharing[0].client
        where = f"consumer {consumer} at {client.life.name}, partition {index}"
        assert rows == expected[: len(rows)], f"{where} got {rows}, by the log {expected}"
        complete = not (client.closed or client.life.ended or any(taker.cut for taker in sharing))
        assert len(rows) == len(expected) or not complete, f"{where} missed {expected[len(rows) :][:5]}"
        for taker in sharing:
            for message_id, body in taker.bodies:
                found = accounts[index].published[message_id].body
                assert found == body, f"{where} got {body!r} as {message_id}, by the log {found!r}"


def check_lost_hold_nothing(world: World, accounts: list[Refold]) -> None:
    for account in accounts:
        machine = account.machine
        for session in [*machine.sessions, *machine.owned]:
            assert session >> EPOCH_SHIFT not in machine.lost_epochs, f"session {session} is of a life that is over"
