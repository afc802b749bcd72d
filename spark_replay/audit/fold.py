"""Audits one partition: folds it once more, with an `Account` beside every queue, and compares every step.

Each check without findings reports one row, with how much it looked at; each finding is a row with offset, queue and
message. After `LISTED` findings of a check in a partition the rest are only counted: a broken machine breaks everything
behind the break, and the first findings show the place.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rewindmq import builds
from rewindmq.projections.clean_stops import Behind
from rewindmq.projections.history.outcomes import targets
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
from rewindmq.projections.machine.data.reasons import (
    ACKED,
    DELAYED,
    DELETED,
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    MOVED,
    REJECTED,
    RELOCATED,
)
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    CheckpointAsked,
    Checkpointed,
    ConsumerAttached,
    ConsumerCancelled,
    Credited,
    DeadLettersForwarded,
    Event,
    Fetched,
    GlobalPrefetchSet,
    Nacked,
    NodeLost,
    PolicyApplied,
    Published,
    QueueDeclared,
    SessionClosed,
)
from rewindmq.schemas.operator_events import MessageRemoved
from rewindmq.schemas.values import EPOCH_SHIFT, Actor
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.base_beliefs import believe
from rewindmq.spark_replay.audit.books import LISTED, Books
from rewindmq.spark_replay.audit.checks import (
    CLAIMS,
    CONSERVATION,
    CONSUMERS,
    DEAD_LETTERS,
    LAST_WORDS,
    PREFETCH,
    RECORDS,
)
from rewindmq.spark_replay.audit.comparison import compare, compare_in_full
from rewindmq.spark_replay.audit.consumers import Attached, check_settlement
from rewindmq.spark_replay.audit.dead_letter_join import LetterRows
from rewindmq.spark_replay.audit.ledger import Account
from rewindmq.spark_replay.audit.operators import OF_OPERATORS, book_operator, check_operator
from rewindmq.spark_replay.audit.plain_traffic import PlainTraffic
from rewindmq.spark_replay.audit.prefetch import Prefetches
from rewindmq.spark_replay.audit.publishes import PublishTally
from rewindmq.spark_replay.history.outcomes import batch_of

if TYPE_CHECKING:
    import pyarrow as pa

DEADLY = (EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT)  # the reasons for which a message is dead-lettered
# Tuples, and dictionaries by type: a union of types would be made anew for each event
_SETTLES = (Acked, Nacked)
_OF_CONNECTIONS = (SessionClosed, NodeLost, BrokerStarted)
_DECLARES = (QueueDeclared, PolicyApplied)
_ABOUT_BROKERS = (SessionClosed, BrokerStarted, NodeLost, CheckpointAsked, ClockSet)
_KEEPS_OUT = (Refuse, Duplicate)
_CHANGES_MESSAGES = (Deliver, FetchReply, Forget, Requeue, Delay)


class AuditProduct(Books):
    """A `Product` that must see a partition from its beginning, or from its base on."""

    def __init__(self, partition: str, letter_rows: LetterRows | None = None) -> None:
        super().__init__(partition, letter_rows)
        self.publishes: PublishTally | None = None  # None: nobody asks how many publishes a session has
        self.plain = PlainTraffic(self)

    run = None  # the audit sees every event (`Product`)

    def begin(self, machine: Machine) -> None:
        """Start at the beginning of a partition, at its base, or where an earlier audit stopped (`Product`)."""
        if machine.next_offset and not self.events and not hasattr(self, "machine"):
            believe(self, machine)
        self.machine = machine

    # -- findings ---------------------------------------------------------------------------------------------------

    def before(self, offset: int, timestamp_ms: int, event: Checkpointed) -> None:
        """Compare a broker's claim with the state (`Product`)."""
        self.offset = offset
        wrong = self.claims.compare(self.machine, event)
        if wrong is not None:
            self.fail(CLAIMS, None, None, wrong)

    def undecodable(self, offset: int, why: str) -> None:
        """Report a record that is not a known event (`Product`)."""
        self.offset = offset
        self.events += 1
        self.quarantine.note_undecodable(offset, why)
        self.fail(RECORDS, None, None, why)

    def _report_behind(self, found: Iterable[Behind]) -> None:
        """Report odd events behind last words: another program wrote them.

        Other events there are no finding: a broker may have been killed while it stopped."""
        here = self.offset
        for behind in found:
            if behind.odd >= 0:
                self.offset = behind.odd
                self.fail(LAST_WORDS, None, None, str(behind))
        self.offset = here

    # -- one event --------------------------------------------------------------------------------------------------

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """Book an event and its effects, and compare the books with the machine (`Product`)."""
        if self.publishes is not None:
            self.publishes.see(offset, actor, event)
        self.offset = offset
        self.events += 1
        before_ms, now_ms = self.now_ms, timestamp_ms + self.ahead_ms
        if now_ms > before_ms:
            self.now_ms = now_ms
        if self.machine.due_effects[0] == offset:
            self.least_ms = before_ms  # effects of passing time happened at some moment after this
        else:
            self.least_ms = self.now_ms
            if type(event) is Published:
                if self.plain.published(offset, actor, event, effects):
                    return
            elif type(event) is Acked and self.plain.acked(offset, event, effects):
                return
        self._book(actor, event, effects)

    def _book(self, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """Book an event of any kind."""
        self.words.see(self.offset, actor, event)
        if self.words.found:
            self._report_behind(self.words.found)
            self.words.found.clear()
        touched: dict[Account, None] = {}
        before = self.machine.time_passed_at(self.offset)
        if before:
            self._book_effects(event, effects[:before], touched)
            effects = effects[before:]
        self.least_ms = self.now_ms
        if isinstance(event, Published):
            self._enters(actor, event, effects, touched)
            self._book_effects(event, effects, touched)
        elif isinstance(event, _SETTLES):
            settled = self.accounts.get((event.vhost, event.queue))
            if settled is not None:
                touched[settled] = None
            self._book_effects(event, effects, touched)
            check_settlement(self.fail, event, effects)
        else:
            self._book_rare_event(actor, event, effects, touched)
            self.plain.forget()
        self._close(touched)

    def book_rest(self, account: Account, event: Acked, effects: list[Effect], at: int) -> None:
        """Book the effects of an ack from `at` on, and compare the books. Those before are booked in `account`."""
        touched: dict[Account, None] = {account: None}
        self._book_effects(event, effects[at:], touched)
        check_settlement(self.fail, event, effects)
        self._close(touched)

    def _close(self, touched: dict[Account, None]) -> None:
        """Compare the books that an event has changed, when all of it is booked."""
        if self.owed:
            for (_, message_id), account in self.owed.items():
                account.fail(DEAD_LETTERS, message_id, "died, and was not dead-lettered")
            self.owed.clear()
        for account in touched:
            if self.account_of.get(account.queue) is account:
                compare(account, self.offset)

    def _book_rare_event(self, actor: Actor, event: Event, effects: list[Effect], touched: dict[Account, None]) -> None:
        """Book an event other than a publish, ack or nack, and its effects."""
        for key in self._book_consumers(actor, event, effects):
            if key in self.accounts:
                touched[self.accounts[key]] = None
        account = self._book_declaration(event, effects)
        if account is not None:
            touched[account] = None
        if isinstance(event, OF_OPERATORS):
            book_operator(self, event, effects)
        self._book_effects(event, effects, touched)
        if isinstance(event, OF_OPERATORS):
            check_operator(self, event, effects)
        elif isinstance(event, _ABOUT_BROKERS):
            self._about_brokers(actor, event)
        elif isinstance(event, DeadLettersForwarded):
            self._about_forwards(event)

    def _about_forwards(self, event: DeadLettersForwarded) -> None:
        last = self.letters.get(event.queue_id, 0)
        if event.taken > last:
            self.letters[event.queue_id] = event.taken
        if self.letter_rows is not None:
            self.letter_rows.forwarded(self.offset, self.log_ms, event, last)

    def _is_lost(self, actor: Actor) -> bool:
        """Return True if the event comes from a node that was lost. The broker itself (session 0) has no epoch."""
        return bool(self.lost) and actor.session != 0 and actor.session >> EPOCH_SHIFT in self.lost

    def _about_brokers(self, actor: Actor, event: Event) -> None:
        if self._is_lost(actor):
            return
        if isinstance(event, SessionClosed):
            self.prefetches.closed(event.session, event.channel)
        elif isinstance(event, NodeLost):
            self.prefetches.lost(event.epoch)
            self.lost[event.epoch] = None
        elif isinstance(event, ClockSet):
            self.ahead_ms = event.ahead_ms
        elif isinstance(event, CheckpointAsked):
            self.claims.claim_requested(self.offset, self.machine)
        elif isinstance(event, BrokerStarted):
            self.prefetches = Prefetches()
            if event.after_crash:
                for account in self.accounts.values():
                    account.crashed = self.offset

    def _enters(self, actor: Actor, event: Published, effects: list[Effect], touched: dict[Account, None]) -> None:
        """Book a publish: the queues that it names and that exist take the message, unless they refuse it."""
        kept_out = [effect.queue.queue_id for effect in effects if isinstance(effect, _KEEPS_OUT)]
        keys = targets(actor, event)
        for key in keys:
            account = self.accounts.get(key)
            if account is not None:
                touched[account] = None
                if event.origin is not None and self.letter_rows is not None:
                    self.letter_rows.arrived(self.offset, self.log_ms, event, "/".join(key))
                if account.queue.queue_id not in kept_out:
                    account.enters(self.offset, event, self.now_ms)
                    if account.once or event.route.deduplication is not None:
                        account.takes_id(self.offset, event, self.now_ms)
                if len(keys) == 1:
                    self.plain.learn(event.route, account)

    def _book_consumers(self, actor: Actor, event: Event, effects: list[Effect]) -> list[tuple[str, str]]:
        """Book changes of consumers, and of what they may hold.

        Returns the queues that the event concerns, whether or not its effects name them."""
        if isinstance(event, _OF_CONNECTIONS):
            if self._is_lost(actor):
                return []
            if isinstance(event, SessionClosed):
                return self.attached.closed(event.session, event.channel)
            if isinstance(event, NodeLost):
                return self.attached.lost(event.epoch)
            self.attached = Attached()
            return list(self.accounts)
        if isinstance(event, GlobalPrefetchSet):
            if not any(isinstance(effect, Quarantine) for effect in effects):
                self.prefetches.limit((event.session, event.channel), event.prefetch)
            return []
        name = getattr(event, "queue", None)
        if name is None:
            return []
        key = (event.vhost, name)  # type: ignore[union-attr]
        if isinstance(event, Fetched):
            self.attached.uses(actor.session, key)
        elif isinstance(event, Credited):
            if not any(isinstance(effect, Quarantine) for effect in effects):
                account = self.accounts.get(key)
                serves = account is not None and account.serves
                self.prefetches.credited(event, serves and self.attached.count(key) == 1)
        elif isinstance(event, (ConsumerAttached, ConsumerCancelled)):
            if any(isinstance(effect, Quarantine) for effect in effects):
                return []
            if isinstance(event, ConsumerCancelled):
                self.attached.cancelled(event.consumer)
            else:
                self._book_attachment(actor, event)
        return [key]

    def _book_attachment(self, actor: Actor, event: ConsumerAttached) -> None:
        self.attached.attached(actor.session, event)
        account = self.accounts.get((event.vhost, event.queue))
        if account is not None:
            self.prefetches.attached(actor.session, event, account.quorum)

    def _book_declaration(self, event: Event, effects: list[Effect]) -> Account | None:
        """Book what the event itself changes before its effects. Returns the account of a queue that it concerns."""
        if not isinstance(event, _DECLARES):
            return None
        for policy in (event.policy, event.operator_policy):
            if policy is not None:
                self.policies.setdefault((event.vhost, policy), self.offset)
        if any(isinstance(effect, Quarantine) for effect in effects):
            return None
        key = (event.vhost, event.queue)
        account = self.accounts.get(key)
        if isinstance(event, PolicyApplied):
            if account is not None:
                account.policy(event)
        elif account is None:
            account = self._open_account(key, event)
        return account

    def _open_account(self, key: tuple[str, str], event: QueueDeclared) -> Account | None:
        queue = self.machine.queue(*key)
        if queue is None:
            self.fail(CONSERVATION, "/".join(key), None, "declared, but there is no queue")
            return None
        return self.open_account(Account(queue, event, self.fail, self.now_ms))

    def open_account(self, account: Account) -> Account:
        """Keep an account from now on."""
        self.plain.forget()
        return super().open_account(account)

    def _book_effects(self, event: Event, effects: list[Effect], touched: dict[Account, None]) -> None:
        """Book the effects. The accounts that they concern are added to `touched`, each once and in order."""
        account_of = self.account_of
        effect: Any  # its type decides; a check for each of them would take longer than to book it
        at, end = 0, len(effects)
        while at < end:
            effect = effects[at]
            kind = type(effect)
            at += 1
            if kind is Quarantine:
                self.first_quarantined = self.first_quarantined if self.quarantined else self.offset
                self.quarantined += 1
                self.quarantine.add(effect.offset, effect.event_type, effect.reason)
                continue
            account = account_of.get(effect.queue)
            if account is None:
                self._of_no_queue(event, effect)
                continue
            touched[account] = None
            if kind is Keep:  # the message was booked by its publish
                continue
            if kind is Deliver:
                plain = 0 if effect.redelivered else self.plain.delivered(account, effects, at - 1)
                if plain:
                    at += plain - 1
                else:
                    self.book_deliveries(account, effect)
            elif kind is FetchReply:
                self._book_fetch(account, effect)
            elif kind is Forget:
                self.book_leaving(account, event, effect)
            else:
                self._book_rare_effect(account, event, effect)
            if kind is QueueGone:
                self.attached.queue_gone(account.key)
                del self.accounts[account.key], account_of[account.queue], touched[account]
                self.plain.forget()

    def _of_no_queue(self, event: Event, effect: Any) -> None:
        """Report an effect that changes messages of a queue without an account."""
        if isinstance(effect, Release):
            self._released(event, effect)
        queue = effect.queue
        if isinstance(effect, _CHANGES_MESSAGES) and queue.name:
            detail = f"{type(effect).__name__} of a queue that is not there"
            self.fail(CONSERVATION, f"{queue.vhost}/{queue.name}", None, detail)

    def _released(self, event: Event, release: Release) -> None:
        if self.letter_rows is not None:
            self.letter_rows.released(self.offset, self.log_ms, event, release)

    def _book_rare_effect(self, account: Account, event: Event, effect: Effect) -> None:
        if isinstance(effect, Release):
            self._released(event, effect)
        elif isinstance(effect, Requeue):
            for message_id in effect.message_ids:
                self.prefetches.lets_go(account.out.get(message_id))
                account.came_back(message_id, effect.reason, self.now_ms)
        elif isinstance(effect, Delay):
            self.prefetches.lets_go(account.out.get(effect.message_id))
            account.waits(effect.message_id, effect.reason, effect.due_ms, self.now_ms)
        elif isinstance(effect, Refuse):
            if isinstance(event, Published):
                account.refused(effect.message_id, event)
        elif isinstance(effect, Duplicate):
            if isinstance(event, Published):
                account.repeated(effect.message_id, event, effect.original, self.now_ms)
        elif isinstance(effect, DeadLetter):
            self._book_letters(account, event, effect)
        elif isinstance(effect, QueueGone):
            for consumer in account.out.values():
                self.prefetches.lets_go(consumer)

    def _book_letters(self, account: Account, event: Event, letters: DeadLetter) -> None:
        """Book letters, and check that each goes where its reason says, with the next number and what it must keep."""
        queue = account.queue
        wanted = account.limits.dead_letter_exchange
        key = letters.routing_key
        if letters.reason == DELAYED:
            wanted = queue.name.removeprefix("amq.delayed.")
        elif letters.reason == MOVED and isinstance(event, MessageRemoved):
            wanted, key = event.exchange, event.routing_key
        elif letters.reason == RELOCATED:
            wanted = ""
        for sequence, message_id in enumerate(letters.message_ids, letters.sequence):
            if self.letter_rows is not None:
                self.letter_rows.sent(self.offset, self.log_ms, letters, message_id, sequence)
            self.owed.pop((queue.queue_id, message_id), None)
            if letters.routing_key != key:
                account.fail(DEAD_LETTERS, message_id, f"moved with the key {letters.routing_key!r}")
            if letters.reason == RELOCATED:
                kept = self.leaving.pop((queue.queue_id, message_id), None)
                at = sequence - letters.sequence
                carried = letters.carried[at] if at < len(letters.carried) else None
                if carried != kept:
                    account.fail(DEAD_LETTERS, message_id, f"takes {carried} along, and had {kept}")
            if letters.exchange != wanted:
                detail = f"dead-lettered to {letters.exchange!r}, the queue's is {wanted!r}"
                account.fail(DEAD_LETTERS, message_id, detail)
            last = self.letters.get(queue.queue_id, 0)
            if sequence != last + 1:
                account.fail(DEAD_LETTERS, message_id, f"dead letter number {sequence} after {last}")
            self.letters[queue.queue_id] = sequence

    def book_deliveries(self, account: Account, effect: Deliver) -> None:
        """Book deliveries, and check each of them."""
        single, later = account.single_active, account.later
        for message_id in effect.message_ids:
            self._book_delivery(account, effect, message_id)
            wrong = self.attached.given(account.key, effect.consumer, effect.final, single, later)
            if wrong is not None:
                account.fail(CONSUMERS, message_id, wrong)
            if not effect.final:
                wrong = self.prefetches.holds(effect.consumer)
                if wrong is not None:
                    account.fail(PREFETCH, message_id, wrong)

    def _book_fetch(self, account: Account, effect: FetchReply) -> None:
        if effect.message_id >= 0:
            self._book_delivery(account, effect, effect.message_id)
        elif account.ready and account.serves:
            account.fail(CONSERVATION, None, f"basic.get found nothing, but {account.ready} are ready")

    def _book_delivery(self, account: Account, effect: Deliver | FetchReply, message_id: int) -> None:
        if not account.serves:
            account.fail(CONSUMERS, message_id, f"delivered to {effect.consumer}, but the queue is paused")
        account.delivered(
            message_id,
            effect.consumer,
            effect.redelivered,
            effect.delivery_count,
            effect.acquired_count,
            effect.final,
            self.offset,
            self.least_ms,
        )

    def book_leaving(self, account: Account, event: Event, effect: Forget) -> None:
        """Book messages that left a queue, and check that they may leave."""
        message_ids = effect.message_ids
        if effect.reason == ACKED and type(event) is Acked:
            booked = account.acked(message_ids, effect.consumer)
            self.prefetches.lets_go(effect.consumer, booked)
            if booked == len(message_ids):
                return
            message_ids = message_ids[booked:]
        if effect.reason == DELETED:
            return  # the queue is deleted with all its messages, and its account
        mourned = account.limits.dead_letter_exchange is not None and effect.reason in DEADLY
        mourned = mourned or effect.reason in (DELAYED, MOVED, RELOCATED)
        for message_id in message_ids:
            if effect.reason == RELOCATED:
                self.leaving[account.queue.queue_id, message_id] = account.carries(message_id)
            self.prefetches.lets_go(account.out.get(message_id))
            account.left(message_id, effect.reason, effect.consumer, event, self.now_ms)
            if mourned:
                self.owed[account.queue.queue_id, message_id] = account

    # -- the end ----------------------------------------------------------------------------------------------------

    def take(self, last: bool) -> "Iterator[pa.RecordBatch]":
        """Yield rows of AUDIT and of LETTERS (`Product`)."""
        if last:
            self._end()
        if self.rows:
            rows, self.rows = self.rows, []
            yield batch_of(rows, columns.AUDIT)
        if self.letter_rows is not None:
            yield from self.letter_rows.take()

    def _end(self) -> None:
        """Compare everything at the end of the log as it is now.

        An audit that continues reaches an end again, and reports each finding once."""
        self.at_end = True
        shown = {(queue.vhost, queue.name) for queue in self.machine.queues()}
        for key in sorted(shown ^ self.accounts.keys()):
            where = "fold" if key in shown else "history"
            self.fail(CONSERVATION, "/".join(key), None, f"the queue is there only by the {where}")
        for key in sorted(self.accounts):
            compare_in_full(self.accounts[key], self.now_ms)
        behind = self.words.behind(self.machine.next_offset)
        self._report_behind([] if behind is None else [behind])
        for check, count in self.failures.items():
            if not count:
                self.rows.append((check, True, self.partition, None, None, None, self._looked_at(check)))
            elif count - LISTED > self.unlisted[check]:
                self.unlisted[check] = count - LISTED
                detail = f"and {count - LISTED} more like these"
                self.rows.append((check, False, self.partition, None, None, None, detail))
        self.at_end = False

    def _looked_at(self, check: str) -> str:
        if check == CLAIMS:
            return str(self.claims)
        if check == RECORDS:
            since = f", the first at offset {self.first_quarantined}" if self.quarantined else ""
            folded = f"folded by the {builds.running().kind} build"
            return f"{self.events} events, {self.quarantined} skipped as making no sense{since}, {folded}"
        if check == LAST_WORDS:
            return f"{self.words.count} brokers stopped cleanly"
        return f"{self.events} events"
