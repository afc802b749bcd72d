"""The judgement over a simulated history: its log is folded afresh, and everything that anybody saw is held against it.

What must hold, however often the broker was killed:
- the log holds every publish that was confirmed (but for what a crash took of those whose confirm did not wait for the
  disk), and refuses those, and only those, whose publisher was told so;
- each message is in one place at a time: every effect finds it where it says, comes from there once, and what is left
  in the end is what the machine says is left (conservation, kept by counting and not by the machine's counters);
- nothing is delivered after its time, nothing dies before it; a message comes again only after a requeue and flagged;
- what anybody was given in one life comes in a later one flagged, also if the log knows nothing of it any more;
- digests claimed live, by snapshots, checkpoints and RocksDB are those of the refold at the same offset;
- the effects carried out in a life are, from its first on, the refold's: fewer only if it was killed with some to do,
  more only if it was killed before the log had them; the same for what each consumer received; bodies are right; those
  that a recovery sees are the refold's, but for effects of repeats;
- every dead letter is taken by each target queue at most once, and by a target that is always there exactly once;
  so is a message that was moved, which is never nowhere;
- behind a broker's last word stands the next start, or it was killed while it stopped.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from rewindmq.engine.log.simulated.embedded import MemoryLog, MemoryPartition
from rewindmq.projections.clean_stops import CleanStops
from rewindmq.projections.machine.data.effects import (
    DeadLetter,
    Delay,
    Deliver,
    Duplicate,
    Effect,
    FetchReply,
    Forget,
    Keep,
    Quarantine,
    QueueGone,
    Refuse,
    Release,
    Requeue,
)
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import DELAYED, MOVED, RELOCATED, UNSENT
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import drive, groups_of
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.topology.placement import Placement
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import (
    BrokerStarted,
    Checkpointed,
    ConsumerAttached,
    DeadLettersForwarded,
    Event,
    Published,
)
from rewindmq.schemas.values import Actor, Origin
from tests.simulation.witness import Claim, EffectRow, Witness, received_row, row_of
from tests.support.letters import message_of, one_by_one

READY = "ready"
WAITING = "waiting"  # after delayed retry
READY_ENDS = ("expired", "maxlen", "purged", "transient", "delayed", "removed", "moved", "relocated")
AWAY = dict.fromkeys(READY_ENDS, READY)  # from where a message leaves so
Message = tuple[int, int]  # queue id, message id


class Account:
    """One partition, refolded: where each message is, counted naively."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.machine = Machine(f"queues-{index}")
        self.published: dict[int, Published] = {}
        self.refused: set[int] = set()
        self.effects: dict[int, list[EffectRow]] = {}  # by offset
        self.received: dict[int, list[EffectRow]] = defaultdict(list)  # by consumer
        self.place: dict[Message, str | int] = {}  # READY, or the holder's id
        self.returns: Counter[Message] = Counter()
        self.crashed_at = 0  # offset of the last BrokerStarted after a crash: what is below may have been delivered
        self.dies_at: dict[Message, int] = {}
        self.born_at: dict[Message, int] = {}
        self.outboxes: dict[int, dict[int, DeadLetter]] = defaultdict(dict)  # by queue id, sequence: not released
        self.letters: dict[tuple[int, int], DeadLetter] = {}  # all that there ever were
        self.given_up: set[tuple[int, int]] = set()
        self.names: dict[int, str] = {}  # of the queues that took letters in, by id
        # target queue id; source name, queue id, sequence, partition (as `Origin.partition`)
        self.taken: Counter[tuple[int, str, int, int, int]] = Counter()
        self.holders: set[int] = set()
        self.words = CleanStops()
        self.expired_at: dict[str, int] = {}  # queues, by name
        self.late: set[int] = set()  # events that found their queue expired in the same turn
        self.ended: Counter[str] = Counter()
        self.duplicates = 0
        self.before_ms = 0  # the machine's clock before the event at hand
        self.now_ms = 0  # the earliest time of the effect at hand: a deadline's effects happen at their own time

    # -- one event and what the machine made of it --------------------------------------------------------------------

    def happened(self, offset: int, event: Event, effects: Sequence[Effect]) -> None:
        self.effects[offset] = [row_of(effect) for effect in effects]
        if isinstance(event, Published):
            self._count_outcomes(offset, event, effects)
        due = self.machine.time_passed_at(offset)
        for at, effect in enumerate(effects):
            self.now_ms = self.before_ms if at < due else self.machine.clock_ms
            self._follow(effect, event)
            if isinstance(effect, QueueGone) and effect.reason == "expired":
                self.expired_at[effect.queue.name] = self.machine.clock_ms
            if isinstance(effect, Quarantine):
                now = self.machine.clock_ms
                if any(at == now and f"no queue {name!r}" in effect.reason for name, at in self.expired_at.items()):
                    self.late.add(offset)
        self.before_ms = self.machine.clock_ms
        if isinstance(event, BrokerStarted) and event.after_crash:
            self.crashed_at = offset
        if isinstance(event, ConsumerAttached):
            assert event.consumer not in self.holders, f"consumer id {event.consumer} was there before"
            self.holders.add(event.consumer)

    def spoke(self, offset: int, actor: Actor, event: Event) -> None:
        """A broker that is killed while it stops leaves events behind its last word, but none that is odd there."""
        self.words.see(offset, actor, event)
        assert all(behind.odd < 0 for behind in self.words.found), self.words.found
        if isinstance(event, BrokerStarted) and event.after_crash:
            self.words.found.clear()
        assert self.words.found == []

    def _count_outcomes(self, offset: int, event: Published, effects: Sequence[Effect]) -> None:
        """Each queue of the route took it, refused it, or had it already; or it does not exist."""
        self.published[offset] = event
        outcome: Counter[int] = Counter()
        for effect in effects:
            if isinstance(effect, Refuse | Duplicate) and effect.message_id == offset:
                outcome[effect.queue.queue_id] += 1
                if isinstance(effect, Refuse):
                    self.refused.add(offset)
                else:
                    self.duplicates += 1
        for name in event.route.queues:
            queue = self.machine.queue(event.route.vhost, name)
            if queue is None:
                continue
            if outcome[queue.queue_id] == 0:
                self._take_in(queue, offset, event)
            else:
                assert outcome[queue.queue_id] == 1, f"message {offset} met {queue.name} more than once"

    def _take_in(self, queue: Queue, offset: int, event: Published) -> None:
        message = (queue.queue_id, offset)
        assert message not in self.born_at
        self.place[message] = READY
        self.born_at[message] = self.machine.clock_ms
        known = (queue.settings.max_age_ms,) if queue.stream else (queue.settings.message_ttl_ms, event.expiration_ms)
        lives = [ms for ms in known if ms is not None]
        if lives:
            self.dies_at[message] = self.machine.clock_ms + min(lives)
        if event.origin is not None:
            origin = event.origin
            self.names[queue.queue_id] = queue.name
            self.taken[(queue.queue_id, origin.queue, origin.queue_id, origin.sequence, origin.partition)] += 1
            if origin.reason == RELOCATED:
                self._take_along(queue, message, origin, event.expiration_ms)

    def _take_along(self, queue: Queue, message: Message, origin: Origin, left_ms: int | None) -> None:
        """A message came with its queue: it is as it was."""
        self.dies_at.pop(message, None)
        if left_ms is not None:
            self.dies_at[message] = self.machine.clock_ms + left_ms
        count = origin.acquired_count if queue.profile.failures_count else origin.delivery_count
        self.returns[message] = count if queue.quorum else int(origin.redelivered)

    # -- effects, one by one ------------------------------------------------------------------------------------------

    def _follow(self, effect: Effect, event: Event) -> None:
        if isinstance(effect, Deliver):
            for message_id in effect.message_ids:
                self._hand_over(effect, message_id)
        elif isinstance(effect, FetchReply):
            if effect.message_id >= 0:
                self._hand_over(effect, effect.message_id)
            else:
                self.received[effect.consumer].append(received_row(effect, effect.message_id))
        elif isinstance(effect, Forget):
            for message_id in effect.message_ids:
                self._leave((effect.queue.queue_id, message_id), effect)
        elif isinstance(effect, Requeue):
            for message_id in effect.message_ids:
                message = (effect.queue.queue_id, message_id)
                was = WAITING if effect.reason == DELAYED else effect.consumer
                assert self.place[message] == was, f"{message} returns from where it is not"
                self.place[message] = READY
                self.returns[message] += effect.reason not in (DELAYED, UNSENT)
                self.ended["not sent"] += effect.reason == UNSENT
        elif isinstance(effect, Delay):
            message = (effect.queue.queue_id, effect.message_id)
            assert self.place[message] == effect.consumer, f"{message} returns from who does not hold it"
            self.place[message] = WAITING
            self.returns[message] += 1
        elif isinstance(effect, DeadLetter):
            for letter in one_by_one(effect):
                self._die(letter)
        elif isinstance(effect, Release):
            self._release(effect, event)
        elif isinstance(effect, QueueGone):
            left = [message for message in self.place if message[0] == effect.queue.queue_id]
            assert not left, f"{effect.queue.name} is gone, and {left} were not forgotten"
        elif isinstance(effect, Keep):
            assert all(message_id in self.published for message_id in effect.message_ids)
        elif isinstance(effect, Refuse | Duplicate):
            assert effect.message_id in self.published

    def _hand_over(self, effect: Deliver | FetchReply, message_id: int) -> None:
        queue, message = effect.queue, (effect.queue.queue_id, message_id)
        assert self.place.get(message) == READY, f"{message} is delivered, but it is at {self.place.get(message)}"
        returns = self.returns[message]
        again = returns > 0 or message_id < self.crashed_at
        assert effect.redelivered == again, f"{message} returned {returns} times: redelivered?"
        count = effect.acquired_count if queue.profile.failures_count else effect.delivery_count
        assert not queue.quorum or count == returns, f"{message} returned {returns} times"
        dies_at, now = self.dies_at.get(message), self.now_ms
        if dies_at is not None:
            at_once = dies_at == now == self.born_at[message]
            assert now < dies_at or at_once, f"{message} is delivered at {now}, and died at {dies_at}"
        self.received[effect.consumer].append(received_row(effect, message_id))
        if effect.final:
            del self.place[message]
            self.ended["delivered"] += 1
        else:
            self.place[message] = effect.consumer

    def _leave(self, message: Message, effect: Forget) -> None:
        place = self.place.pop(message)
        if effect.reason != "deleted":
            expected = AWAY.get(effect.reason, effect.consumer)
            waited = place == WAITING and effect.reason in ("purged", "removed", "moved", "relocated")
            assert place == expected or waited, f"{message} {effect.reason} from {expected}, but it is at {place}"
        if effect.reason in ("expired", "delayed"):
            assert self.dies_at[message] <= self.machine.clock_ms, f"{message} {effect.reason} before its time"
        self.ended[effect.reason] += 1

    def _die(self, effect: DeadLetter) -> None:
        queue_id = effect.queue.queue_id
        outbox = self.outboxes[queue_id]
        before = max((sequence for source, sequence in self.letters if source == queue_id), default=0)
        assert effect.sequence == before + 1, f"dead letter {effect.sequence} of {queue_id} follows {before}"
        assert (queue_id, message_of(effect)) not in self.place, "dead, and still in the queue"
        outbox[effect.sequence] = self.letters[(queue_id, effect.sequence)] = effect
        for carried in effect.carried:
            self._check_carried(effect, carried)

    def _check_carried(self, effect: DeadLetter, carried: Carried) -> None:
        """A message leaves with its queue: it takes along what it was."""
        queue, message = effect.queue, (effect.queue.queue_id, message_of(effect))
        returns = self.returns[message]
        assert carried.redelivered == (returns > 0 or message[1] < self.crashed_at), f"{message}: {carried}"
        count = carried.acquired_count if queue.profile.failures_count else carried.delivery_count
        assert not queue.quorum or count == returns, f"{message} returned {returns} times: {carried}"
        dies_at = self.dies_at.get(message, NONE)
        rest = int(queue.quorum and dies_at != NONE)  # a quorum queue's message lives for the rest of its millisecond
        assert dies_at <= carried.expiry <= dies_at + rest, f"{message} is to die at {dies_at}: {carried}"

    def _release(self, effect: Release, event: Event) -> None:
        queue_id = effect.queue.queue_id
        outbox = self.outboxes[queue_id]
        forwarded = isinstance(event, DeadLettersForwarded) and event.queue_id == queue_id
        for message_id in effect.message_ids:
            sequence = next(sequence for sequence, letter in outbox.items() if message_of(letter) == message_id)
            del outbox[sequence]
            if not forwarded:
                self.given_up.add((queue_id, sequence))

    def count(self, witness: Witness) -> None:
        """Add this account's figures to the witness, so that tests can check that the histories meet every case."""
        witness.ended.update(self.ended)
        witness.counts["dead letters"] += len(self.letters)
        witness.counts["dead letters seen before"] += self.duplicates
        witness.counts["refused"] += len(self.refused)

    # -- in the end ---------------------------------------------------------------------------------------------------

    def check_what_is_left(self) -> None:
        machine = self.machine
        left: dict[Message, str | int] = {}
        for queue in machine.queues():
            for view in queue.messages():
                left[(queue.queue_id, view.message_id)] = READY if view.state == "ready" else view.consumer
        assert left == self.place, f"left is {left}, by account {self.place}"
        waiting = {queue.queue_id: list(queue.outbox) for queue in machine.outboxes()}
        assert waiting == {queue_id: list(outbox) for queue_id, outbox in self.outboxes.items() if outbox}
        again = {key: times for key, times in self.taken.items() if times > 1}
        assert not again, f"dead letters taken in more than once: {again}"


# -- the judgement ----------------------------------------------------------------------------------------------------


def judge(log: MemoryLog, witness: Witness, dead: str, validate: bool) -> list[Account]:
    """AssertionError says what is wrong. The log is healed and drained, its broker stopped. `dead`: the queue that
    takes every letter of the exchange `dlx`. `validate`: check every invariant after every event."""
    accounts = []
    for index in range(len(log.queues)):
        account = Account(index)
        claims = [claim for claim in witness.claims if claim.partition == index]
        refold(account, log, claims, validate)
        account.check_what_is_left()
        accounts.append(account)
    check_publishes(accounts, witness)
    check_performed(accounts, witness)
    check_receipts(accounts, witness)
    check_flags(witness)
    check_letters(accounts, dead, Placement())
    return accounts


def checkpoints_of(partition: MemoryPartition) -> list[int]:
    """Where the log says what the broker believed."""
    decoder = Decoder()
    return [
        block.first_offset + at
        for block in partition.read()
        for at, record in enumerate(block.records)
        if isinstance(decoder.decode(record)[2], Checkpointed)
    ]


def refold(account: Account, log: MemoryLog, claims: list[Claim], validate: bool) -> None:
    machine = account.machine
    partition = log.queues[account.index]
    digests = {0: machine.digest()}
    checkpoints = checkpoints_of(partition)
    wanted = {claim.offset for claim in claims} | set(checkpoints)
    quarantined = QuarantineReport()

    def after(offset: int, _timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        quarantined.note(effects)
        account.spoke(offset, actor, event)
        if isinstance(event, Checkpointed):
            assert event.offset == offset - 1
            assert event.digest == digests[offset], f"the checkpoint at {offset} claims another state"
        account.happened(offset, event, effects)
        if offset + 1 in wanted:
            digests[offset + 1] = machine.digest()
        if validate:
            machine.validate()

    note = quarantined.note_undecodable
    drive(machine, groups_of(partition, 0), Decoder(), after=after, undecodable=note, bodies=True)
    assert machine.next_offset == partition.next_offset
    absurd = [each for each in quarantined.newest() if each.offset not in account.late]
    assert not absurd, f"quarantined: {absurd[:3]}"
    for claim in claims:
        assert claim.offset in digests, f"{claim.who} is at {claim.offset}, the log ends at {machine.next_offset}"
        assert digests[claim.offset] == claim.digest, f"{claim.who} at {claim.offset} is not what the log says"


def check_publishes(accounts: list[Account], witness: Witness) -> None:
    final_life = witness.life.number
    for publish in witness.publishes:
        for place, (index, offset) in enumerate(publish.places):
            if place not in publish.answers:
                assert publish.life < final_life, f"{publish.body!r} was never answered"
                continue
            found = accounts[index].published.get(offset)
            if place in publish.prompt and (found is None or found.body != publish.body):
                assert witness.lives[publish.life].crashed, f"{publish.body!r} did not wait for the disk, and is lost"
                continue
            assert found is not None, f"{publish.body!r} was confirmed at {index}/{offset}, and is lost"
            assert found.body == publish.body, f"{publish.body!r} was confirmed at {index}/{offset}: {found.body!r}"
            refused = offset in accounts[index].refused
            assert publish.answers[place] == refused, f"{publish.body!r}: its publisher was told a lie"


def check_performed(accounts: list[Account], witness: Witness) -> None:
    for life in witness.lives:
        for account in accounts:
            index = account.index
            began, end = life.began[index], account.machine.next_offset if life.ended is None else life.ended[index]
            where = f"life {life.number}, partition {index}"
            replayed = _effects(account, life.stored[index], began)
            seen = life.replayed[index]
            if life.crashed:  # it was broken off, maybe amid messages that it applied together
                seen = seen[: max((at for at, row in enumerate(seen) if row[0] not in ("Keep", "Deliver")), default=0)]
            _check_prefix(_by_message(seen), _by_message(replayed), life.crashed, False, f"{where}: replayed")
            performed = _effects(account, began, end)
            _check_prefix(life.performed[index], performed, life.crashed, life.crashed, f"{where}: performed")


def _effects(account: Account, first: int, behind: int) -> list[EffectRow]:
    return [row for offset in range(first, behind) for row in account.effects.get(offset, ())]


def _by_message(rows: Sequence[EffectRow]) -> list[EffectRow]:
    """Arrivals and deliveries that follow each other, one by one in the order of their messages.

    A recovery applies publishes together (`Machine.apply`), so it keeps many messages before it delivers them."""
    ordered: list[EffectRow] = []
    stretch: list[tuple[int, EffectRow]] = []
    for row in [*rows, ("end",)]:
        if row[0] in ("Keep", "Deliver"):
            stretch += [(message_id, (*row[:2], message_id, *row[3:])) for message_id in row[2]]
        else:
            ordered += [each for _, each in sorted(stretch, key=lambda each: each[0])]
            ordered.append(row)
            stretch = []
    return ordered[:-1]


def _check_prefix(
    seen: Sequence[object], expected: Sequence[object], may_be_short: bool, may_be_long: bool, where: str
) -> None:
    for at, (one, other) in enumerate(zip(seen, expected, strict=False)):
        assert one == other, f"{where}: at {at} was {one}, by the log {other}"
    assert may_be_short or len(seen) >= len(expected), f"{where}: not done: {expected[len(seen) :][:5]}"
    assert may_be_long or len(seen) <= len(expected), f"{where}: done too much: {seen[len(expected) :][:5]}"


def check_receipts(accounts: list[Account], witness: Witness) -> None:
    for (index, consumer, _), receipt in witness.receipts.items():
        account, life = accounts[index], witness.lives[receipt.life]
        end = account.machine.next_offset if life.ended is None else life.ended[index]
        if receipt.attached_at >= end:
            continue  # lost with the end of its life: it never was
        where = f"consumer {consumer} of life {life.number}"
        _check_prefix(receipt.rows, account.received[consumer], receipt.cut, life.crashed, where)
        for message_id, body in receipt.bodies:
            if message_id < end:
                found = account.published[message_id].body
                assert found == body, f"{where} got {body!r} as {message_id}, by the log {found!r}"


def check_flags(witness: Witness) -> None:
    """By what the clients saw alone."""
    given: dict[tuple[int, int, int], int] = {}  # partition, queue id, message id -> in which life
    for (index, consumer, number), receipt in sorted(witness.receipts.items(), key=lambda item: item[0][2]):
        ended = witness.lives[number].ended
        for queue_id, message_id, redelivered, *_ in receipt.rows:
            if message_id < 0:  # an empty basic.get
                continue
            before = given.get((index, queue_id, message_id), number)
            where = f"message {index}/{message_id}, to consumer {consumer} of life {number}"
            assert redelivered or before == number, f"{where}: as new, and was given in life {before}"
            if ended is None or message_id < ended[index]:  # else the next message may have this id
                given.setdefault((index, queue_id, message_id), number)


def check_letters(accounts: Sequence[Account], dead: str, placement: Placement) -> None:
    """Check that dead letters, and messages that moved with their queue, have arrived, and none of them twice."""
    arrived: Counter[tuple[str, str, int, int, int]] = Counter()  # target queue; then as `Account.taken`
    for account in accounts:
        for (target, name, queue_id, sequence, partition), times in account.taken.items():
            arrived[account.names[target], name, queue_id, sequence, partition] += times
    anywhere: Counter[tuple[str, int, int, int]] = Counter()
    for (_, name, queue_id, sequence, partition), times in arrived.items():
        anywhere[name, queue_id, sequence, partition] += times
    again = {key: times for key, times in arrived.items() if times > 1}
    assert not again, f"letters taken in more than once by a queue that moved: {again}"
    for account in accounts:
        for (queue_id, sequence), letter in account.letters.items():
            queue = letter.queue
            source = queue.name, queue_id, sequence, placement.as_origin(queue.vhost, queue.name, account.index)
            if letter.exchange in ("dlx", "later") and (queue_id, sequence) not in account.given_up:
                times = arrived[(dead, *source)]
                assert times == 1, f"dead letter {sequence} of {queue.name} arrived {times} times"
            if letter.reason == MOVED:  # it is somewhere: where it was moved to, or back in its queue
                assert anywhere[source] > 0, f"message {message_of(letter)} of {queue.name} was moved, and is nowhere"
            if letter.reason == RELOCATED and lives_on(accounts, placement, queue, account.index):
                told = f"message {message_of(letter)} of {queue.name}, {account.index}, left with it, and is nowhere"
                assert arrived[(queue.name, *source)] == 1, told
    for account in accounts:
        for offset, event in account.published.items():
            if event.origin is not None:
                check_origin(accounts, placement, f"{account.index}/{offset}", event, event.origin)


def lives_on(accounts: Sequence[Account], placement: Placement, queue: Queue, partition: int) -> bool:
    """Return True if a queue that left this partition still exists in the last partition to which it moved."""
    queue_id, home = queue.queue_id, partition
    for move in placement.moves.get((queue.vhost, queue.name), ()):
        if (move.source, move.from_id) == (home, queue_id):
            home, queue_id = move.target, move.to_id
    found = accounts[home].machine.by_id.get(queue_id)
    return home != partition and found is not None and not found.gone


def check_origin(
    accounts: Sequence[Account], placement: Placement, where: str, event: Published, origin: Origin
) -> None:
    key = (origin.queue_id, origin.sequence)
    first = partition_of(origin.vhost, origin.queue, placement.made_with or len(accounts))
    source = accounts[first if origin.partition < 0 else origin.partition]
    assert key in source.letters, f"{where} is the dead letter of a message that did not die"
    letter = source.letters[key]
    same = (message_of(letter), letter.reason) == (origin.message_id, origin.reason)
    assert same, f"dead letter at {where}: {origin}, by the log {row_of(letter)}"
    for carried in letter.carried:
        counts = origin.delivery_count, origin.acquired_count, origin.redelivered
        told = f"message at {where} came as {counts}, and left as {carried}"
        assert counts == (carried.delivery_count, carried.acquired_count, carried.redelivered), told
        assert (event.expiration_ms is None) == (carried.expiry == NONE), told
    body = source.published[origin.message_id].body
    assert event.body == body, f"dead letter at {where}: {event.body!r}, once {body!r}"
