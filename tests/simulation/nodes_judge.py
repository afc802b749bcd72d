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
- a queue that moved is in one partition in the end, its home. What left with it has arrived there once, with its flags
  and counts; a publish that was confirmed is in none of the partitions that the queue has left; and what one client
  published comes in its order, before the move and after it;
- Ticks are few beside the deadlines that passed.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby

from rewindmq.engine.log.simulated.shared import SimulatedPartition
from rewindmq.projections.machine.data.effects import (
    Deliver,
    Effect,
    FetchReply,
    Quarantine,
    QueueGone,
    Requeue,
)
from rewindmq.projections.machine.data.reasons import RELOCATED, UNSENT
from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.placement import Move, Placement
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Checkpointed, Event, NodeLost, Published, QueueDeclared, Tick
from rewindmq.schemas.metadata_events import NodeJoined
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import EPOCH_SHIFT
from tests.simulation.clients import DEAD
from tests.simulation.judge import Account, Message, check_letters
from tests.simulation.nodes_connections import Publish, Taker
from tests.simulation.nodes_world import Life, World
from tests.simulation.witness import EffectRow

IDLE_TICKS = 40  # for which nothing was due, in a history of this size; one more for each that something was
OF_RUNS = ("Keep", "Deliver")  # effects of runs of publishes


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
        self.times_ms: dict[int, int] = {}  # the log's, by offset
        self.nowhere: dict[int, list[str]] = {}  # publishes, and the queues of their route that were not there
        self.born_ms: dict[int, int] = {}  # queues, by id, with the log's time
        self.gone_ms: dict[int, int] = {}
        # In this order: messages given to a consumer for the first time (True), and back before they were sent (False)
        self.given: list[tuple[Message, bool]] = []

    def fold(self, partition: SimulatedPartition, wanted: set[int]) -> None:
        machine, decoder = self.machine, SharedDecoder()
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
            self.times_ms[offset] = timestamp_ms
            effects: list[Effect] = []
            machine.apply(offset, timestamp_ms, actor, event, effects)
            lost = any(isinstance(each, Quarantine) and each.reason.startswith(NODE_LOST) for each in effects)
            if lost:
                self.void[offset] = NODE_LOST
            if isinstance(event, Published) and event.origin is None and not lost:
                self.by_body[event.body].append(offset)
                missing = [name for name in event.route.queues if machine.queue(event.route.vhost, name) is None]
                if missing:
                    self.nowhere[offset] = missing
            self.note_queues(offset, timestamp_ms, event, effects)
            if lost and isinstance(event, Published):
                self.void_publish(offset, event, effects)
            else:
                self.happened(offset, event, effects)
        for offset in todo:
            self.digests[offset] = machine.digest()

    def note_queues(self, offset: int, timestamp_ms: int, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, QueueDeclared) and offset in self.machine.by_id:
            self.born_ms[offset] = timestamp_ms
        for effect in effects:
            if isinstance(effect, QueueGone):
                self.gone_ms[effect.queue.queue_id] = timestamp_ms
            elif isinstance(effect, Deliver) and not effect.redelivered:
                self.given += [((effect.queue.queue_id, message_id), True) for message_id in effect.message_ids]
            elif isinstance(effect, FetchReply) and effect.message_id >= 0 and not effect.redelivered:
                self.given.append(((effect.queue.queue_id, effect.message_id), True))
            elif isinstance(effect, Requeue) and effect.reason == UNSENT:
                self.given += [((effect.queue.queue_id, message_id), False) for message_id in effect.message_ids]

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
    joins, placement = check_topology(world)
    check_publishes(accounts, publishes)
    check_order(accounts, publishes)
    for life in world.record.lives:
        check_performed(accounts, life)
    check_receipts(accounts, takers)
    check_letters(accounts, DEAD, placement)
    check_homes(accounts, placement)
    check_followed(accounts, placement, publishes)
    check_first_deliveries(accounts, placement, publishes)
    counts = world.record.counts
    counts["repartitions"] += len(placement.earlier)
    moves = [move for each in placement.moves.values() for move in each]
    counts["queues that moved"] += len([move for move in moves if move.from_id != -1])
    counts["names that moved"] += len([move for move in moves if move.from_id == -1])
    counts["queues that moved twice"] += len([each for each in placement.moves.values() if len(each) > 1])
    counts["queues that stayed"] += len(placement.staying)
    check_lost_hold_nothing(world, accounts)
    joins += len(world.record.lives)  # each begins with a Tick; and some do not come to join
    for account in accounts:
        told = f"{account.idle_ticks} of {account.ticks} ticks in partition {account.index} came for nothing"
        assert account.idle_ticks <= IDLE_TICKS + joins + account.ticks - account.idle_ticks, told
    return accounts


def checkpoints_of(partition: SimulatedPartition) -> set[int]:
    decoder = SharedDecoder()
    found = set()
    for value in partition.values:
        try:
            event = decoder.decode(value, bodies=False)[2]
        except UndecodableRecord:
            continue
        if isinstance(event, Checkpointed):
            found.add(event.offset + 1)
    return found


def check_topology(world: World) -> tuple[int, Placement]:
    """Check the claims about the topology. Return the number of joins of nodes, and the final placement."""
    log, decoder, topology = world.history.metadata, SharedDecoder(), Topology()
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
    return joins, topology.placement


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


def each_message(rows: Iterable[EffectRow]) -> list[EffectRow]:
    """Return the rows with one message each."""
    found: list[EffectRow] = []
    for row in rows:
        if row[0] in OF_RUNS:
            name, queue, ids, *rest = row
            found += [(name, queue, each, *rest) for each in ids]
        else:
            found.append(row)
    return found


def in_runs(rows: Iterable[EffectRow]) -> list[EffectRow]:
    """Return rows of `each_message` in an order that is the same however publishes that follow each other were cut into
    runs."""
    found: list[EffectRow] = []
    for of_runs, several in groupby(rows, lambda row: row[0] in OF_RUNS):
        found += sorted(several, key=lambda row: row[2] if of_runs else 0)
    return found


def check_performed(accounts: list[Refold], life: Life) -> None:
    for index, times in enumerate(life.began):
        effects = accounts[index].effects
        ends = [first for _, first in times[1:]] + [len(life.performed[index])]
        for (began, first), end in zip(times, ends, strict=True):
            expected = each_message([row for offset in sorted(effects) if offset >= began for row in effects[offset]])
            seen = each_message(life.performed[index][first:end])
            where = f"{life.name}, partition {index} from {began}"
            for at, (one, other) in enumerate(zip(in_runs(seen), in_runs(expected[: len(seen)]), strict=False)):
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


def lineages(placement: Placement) -> list[tuple[str, list[tuple[int, int]]]]:
    """The queues that moved, in vhost "/": name, and the partitions and ids that each had, in their order."""
    found = []
    for (vhost, name), moves in placement.moves.items():
        chains: list[list[Move]] = []
        for move in moves:
            if move.from_id == -1:
                continue
            before = next((c for c in chains if (c[-1].target, c[-1].to_id) == (move.source, move.from_id)), None)
            if before is None:
                chains.append([move])
            else:
                before.append(move)
        for chain in chains if vhost == "/" else ():
            places = [(chain[0].source, chain[0].from_id), *((move.target, move.to_id) for move in chain)]
            found.append((name, [place for place in places if place[1] != -1]))
    return found


def check_homes(accounts: list[Refold], placement: Placement) -> None:
    assert not placement.moving, f"on their way for ever: {placement.moving}"
    assert not placement.held, "names are held for ever"
    if placement.count:
        for account in accounts:
            for name in account.machine.by_name:
                home = placement.home(*name, 0)
                assert home == account.index, f"{name} is in partition {account.index}, and its home is {home}"


def check_followed(accounts: list[Refold], placement: Placement, publishes: list[Publish]) -> None:
    """A publish that was confirmed found its queue, if that lives, in whichever partition."""
    moved = lineages(placement)
    for publish in publishes:
        for place, index in enumerate(publish.places):
            for offset in accounts[index].by_body.get(publish.body, []) if place in publish.answers else ():
                at_ms = accounts[index].times_ms[offset]
                for name in accounts[index].nowhere.get(offset, ()):
                    for of, places in moved:
                        passed = of == name and index in [partition for partition, _ in places]
                        began_ms = accounts[places[0][0]].born_ms.get(places[0][1], at_ms)
                        partition, queue_id = places[-1]
                        ended_ms = accounts[partition].gone_ms.get(queue_id, at_ms + 1)
                        told = f"{publish.body!r} was confirmed, and is at {index}/{offset}, which {name} has left"
                        assert not (passed and began_ms <= publish.at_ms and ended_ms > at_ms), told


def check_first_deliveries(accounts: list[Refold], placement: Placement, publishes: list[Publish]) -> None:
    """Check that a client's messages to a queue are first given in the order of its publishes.

    While a message waits at a consumer that does not take it, other consumers get later messages. When it comes back
    unsent, it is the first one again: from that time on no later message may be given before it."""
    numbers = {publish.body: number for number, publish in enumerate(publishes)}
    for name, places in lineages(placement):
        last: dict[int, int] = {}  # by session
        since: dict[int, int] = {}  # messages that came back unsent -> the last one that was given since then
        for partition, queue_id in places:
            for (queue, message_id), is_given in accounts[partition].given:
                if queue != queue_id or not is_clients(accounts, placement, partition, message_id):
                    continue
                number = numbers.get(accounts[partition].published[message_id].body)
                if number is None:  # it was put into the log
                    continue
                if not is_given:
                    since[number] = -1
                    continue
                session = publishes[number].client.session.session_id
                told = f"{name} in partition {partition} gives {publishes[number].body!r} too late"
                before = since.pop(number) if number in since else last.get(session, -1)
                assert before < number, told
                last[session] = max(number, last.get(session, -1))
                for other in since:
                    if publishes[other].client.session.session_id == session:
                        since[other] = max(number, since[other])


def is_clients(accounts: list[Refold], placement: Placement, partition: int, message_id: int) -> bool:
    """Return True if a client published the message to this queue, and it is not a dead letter from elsewhere."""
    origin = accounts[partition].published[message_id].origin
    while origin is not None and origin.reason == RELOCATED:
        first = partition_of(origin.vhost, origin.queue, placement.made_with)
        origin = accounts[first if origin.partition < 0 else origin.partition].published[origin.message_id].origin
    return origin is None
