"""Books plain publishes and acks in few steps: most of a history is nothing else.

    plain.published(offset, actor, event, effects)   True: the one queue of its route took the message; all is booked
    plain.acked(offset, event, effects)              True: the consumer had the messages, and they left; all is booked
    plain.delivered(account, effects, at)            how many of the effects from `at` on are first deliveries about
                                                     which nothing is odd; they are booked
    plain.forget()                                   consumers, policies or queues may have changed

This file finds nothing. It looks at all that fold.py, ledger.py, consumers.py and prefetch.py look at, and books what
they would book, if none of them could say anything. Else it books nothing and says False: then they judge.
tests/unit/machine/test_machine_audited_plainly.py holds it against them: equal books, also of machines that lie.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from rewindmq.projections.clean_stops import CleanStops
from rewindmq.projections.machine.data.effects import Deliver, Effect, Forget, Keep
from rewindmq.projections.machine.data.message_word import SIZE_MASK
from rewindmq.projections.machine.data.reasons import ACKED, DELIVERED, MAXLEN
from rewindmq.schemas.events import Acked, Event, Published
from rewindmq.schemas.values import Actor, Route
from rewindmq.spark_replay.audit.comparison import compare
from rewindmq.spark_replay.audit.consumers import Attached
from rewindmq.spark_replay.audit.ledger import Account
from rewindmq.spark_replay.audit.prefetch import Prefetches

_REMEMBERED = 10_000  # routes
_WITHOUT_LIMIT, _NO_ACK = 1 << 62, 0  # room of consumers: without a prefetch, and of those that hold nothing


class PlainRoute:
    """A route with one queue, which takes plain messages.

    `ttl_ms`: how long they live; -1: for ever. `limited`: the queue has a length limit. `mourned`: what the queue drops
    is dead-lettered."""

    __slots__ = ("account", "counters", "limited", "mourned", "out", "queue", "sizes", "ttl_ms", "waiting")

    def __init__(self, account: Account) -> None:
        limits = account.limits
        self.account = account
        self.queue = account.queue
        self.sizes, self.out, self.waiting = account.sizes, account.out, account.waiting
        self.counters = account.counters
        self.ttl_ms = -1 if limits.message_ttl_ms is None else max(limits.message_ttl_ms, int(account.quorum))
        self.limited = limits.max_length is not None or limits.max_length_bytes is not None
        self.mourned = limits.dead_letter_exchange is not None

    def goes_on(self, effect: Effect) -> bool:
        """Return True if a plain message may have this effect after the one that keeps it: its delivery, or a drop."""
        drops = type(effect) is Forget and effect.reason == MAXLEN and not self.mourned
        return (drops or type(effect) is Deliver) and effect.queue is self.queue  # type: ignore[union-attr]


class Room:
    """A consumer of a queue, and how many messages it may hold (`most`). `holding`: how many each consumer holds."""

    __slots__ = ("account", "holding", "most", "name", "queue", "vhost")

    def __init__(self, account: Account, most: int, holding: dict[int, int]) -> None:
        self.account = account
        self.holding = holding
        self.queue = account.queue
        self.vhost, self.name = account.key
        self.most = most


class Audit(Protocol):
    """The audit that takes what is not plain (fold.py `AuditProduct`)."""

    attached: Attached
    lost: dict[int, None]
    now_ms: int
    prefetches: Prefetches
    words: CleanStops

    def book_deliveries(self, account: Account, effect: Deliver) -> None:
        """Book deliveries, and check each of them."""

    def book_leaving(self, account: Account, event: Event, effect: Forget) -> None:
        """Book messages that left a queue, and check that they may leave."""

    def book_rest(self, account: Account, event: Acked, effects: list[Effect], at: int) -> None:
        """Book the effects of an ack from `at` on, and compare the books. Those before are booked in `account`."""


class PlainTraffic:
    """The facts that stay the same while messages come and go: the queues of routes, and the room of consumers."""

    line: PlainRoute  # of `event`

    def __init__(self, product: Audit) -> None:
        self.product = product
        self.lines: dict[Route, PlainRoute] = {}
        self.rooms: dict[int, Room] = {}  # by consumer
        self.event: Published | None = None  # the last one that was plain: a decoder gives the same again
        self.actor: Actor | None = None

    def forget(self) -> None:
        """Begin anew: consumers, policies or queues may have changed."""
        self.event = None
        self.lines.clear()
        self.rooms.clear()

    def learn(self, route: Route, account: Account) -> None:
        """Note the only queue that publishes of this route go to."""
        own_way = account.stream or account.delays or account.levels.highest is not None
        own_way = own_way or account.once or route.deduplication is not None
        known = "published" in account.counters and not self.product.words.waiting
        if known and not (own_way or self.product.lost):
            if len(self.lines) >= _REMEMBERED:
                self.lines.clear()
            self.lines[route] = PlainRoute(account)

    def published(self, offset: int, actor: Actor, event: Published, effects: list[Effect]) -> bool:
        """Book a message that its queue took, and compare the books.

        It stayed there, or went straight to a consumer, or the queue dropped others for it."""
        if (event is not self.event or actor is not self.actor) and not self._finds_line(actor, event):
            return False
        line, count = self.line, len(effects)
        sizes, queue = line.sizes, line.queue
        if offset in sizes or not 0 < count < 3:
            return False
        account, keep = line.account, effects[0]
        if type(keep) is not Keep:
            return type(keep) is Deliver and count == 1 and self._passed(account, offset, keep)
        if keep.queue is not queue or (count == 2 and not line.goes_on(effects[1])):
            return False
        sizes[offset] = size = event.body_size
        line.counters["published"] += 1
        if line.ttl_ms >= 0:
            account.expires[offset] = self.product.now_ms + line.ttl_ms
        if count == 1:
            account.bytes_ready += size
        else:
            self._kept_and_more(account, event, offset, effects)
        out, waiting = len(line.out), len(line.waiting)
        if (
            line.limited
            or len(sizes) - out - waiting != queue.messages_ready
            or out != queue.messages_unacked
            or waiting != queue.messages_delayed
            or account.bytes_ready != queue.message_bytes_ready
            or account.bytes_out != queue.message_bytes_unacked
            or account.bytes_waiting != queue.message_bytes_delayed
        ):
            compare(account, offset)
        return True

    def _finds_line(self, actor: Actor, event: Published) -> bool:
        """Look up the line of a message. False: its publish is not plain."""
        line = self.lines.get(event.route)
        if (
            line is None
            or event.origin is not None
            or event.expiration_ms is not None
            or not 0 <= event.body_size <= SIZE_MASK
            or actor.session == 0
        ):
            return False
        self.line, self.event, self.actor = line, event, actor
        return True

    def _kept_and_more(self, account: Account, event: Published, offset: int, effects: list[Effect]) -> None:
        """Book the delivery of a message that was kept, or the drop of others for it."""
        behind: Any = effects[1]  # `PlainRoute.goes_on` has looked at it
        if type(behind) is Forget:
            account.bytes_ready += event.body_size
            self.product.book_leaving(account, event, behind)
            return
        consumer, last_first = behind.consumer, account.last_first
        room = self.rooms.get(consumer) or self._room(account, consumer)
        if (
            room is None
            or room.account is not account
            or len(behind.message_ids) != 1
            or behind.message_ids[0] != offset
            or (held := room.holding.get(consumer, 0)) >= room.most
            or behind.redelivered
            or behind.final
            or behind.delivery_count
            or behind.acquired_count
            or offset < last_first.get(0, -1)
        ):
            account.bytes_ready += event.body_size
            if not self.delivered(account, effects, 1):
                self.product.book_deliveries(account, behind)
            return
        last_first[0] = offset
        account.out[offset] = consumer
        account.bytes_out += event.body_size
        room.holding[consumer] = held + 1

    def _passed(self, account: Account, offset: int, effect: Deliver) -> bool:
        """Book a message that went straight to a consumer without acknowledgement, and compare the books."""
        room = self.rooms.get(effect.consumer) or self._room(account, effect.consumer)
        if (
            room is None
            or room.account is not account
            or room.most != _NO_ACK
            or effect.queue is not account.queue
            or len(effect.message_ids) != 1
            or effect.message_ids[0] != offset
            or not effect.final
            or effect.redelivered
            or effect.delivery_count
            or effect.acquired_count
            or offset < account.crashed
            or offset < account.last_first.get(0, -1)
        ):
            return False
        account.last_first[0] = offset
        account.counters["published"] += 1
        account.count(DELIVERED)
        compare(account, offset)
        return True

    def acked(self, offset: int, event: Acked, effects: list[Effect]) -> bool:
        """Book messages that left their queue as the consumer that had them acked them, and compare the books.

        Deliveries may follow, and then anything else."""
        consumer = event.consumer
        room = self.rooms.get(consumer)
        if room is None or event.queue != room.name or event.vhost != room.vhost:
            return False
        account, queue, asked, at, end = room.account, room.queue, 0, 0, len(effects)
        for first, last in event.messages:
            asked += last - first + 1
        for effect in effects:
            if type(effect) is not Forget:
                break
            if effect.reason != ACKED or effect.consumer != consumer or effect.queue is not queue:
                return False
            asked -= len(effect.message_ids)
            at += 1
        if asked:
            return False
        for index in range(at):
            self.product.book_leaving(account, event, effects[index])  # type: ignore[arg-type]  # looked at above
        if at < end:
            at += self.delivered(account, effects, at)
        if at < end:
            self.product.book_rest(account, event, effects, at)
        else:
            compare(account, offset)
        return True

    def delivered(self, account: Account, effects: Sequence[Effect], at: int) -> int:
        """Book first deliveries of messages to consumers with room, which ack. Returns how many."""
        queue, sizes, out = account.queue, account.sizes, account.out
        past = account.returned or account.waiting or account.expires or account.flagged or account.counted
        holding = self.product.prefetches.holding
        # the first delivery of a message that stands before this one, or that may be known from before a crash, is odd
        least = max(account.last_first.get(0, -1), account.crashed)
        consumer, held, most, count, moved = -1, 0, 0, 0, 0
        for effect in effects[at:] if at else effects:
            if type(effect) is not Deliver or effect.queue is not queue:
                break
            if effect.consumer != consumer:
                room = self.rooms.get(effect.consumer) or self._room(account, effect.consumer)
                if room is None or room.account is not account:
                    break
                if held:
                    holding[consumer] = held
                consumer, most = effect.consumer, room.most
                held = holding.get(consumer, 0)
            ids = effect.message_ids
            if (
                held + len(ids) > most
                or effect.redelivered
                or effect.final
                or effect.delivery_count
                or effect.acquired_count
            ):
                break
            behind, size = least, 0
            for message_id in ids:
                of_it = sizes.get(message_id)
                if of_it is None or message_id in out or message_id < behind or (past and account.has_past(message_id)):
                    break
                size += of_it
                behind = message_id
            else:
                out.update(dict.fromkeys(ids, consumer))
                moved += size
                held += len(ids)
                count += 1
                least = behind
                continue
            break
        if held:
            holding[consumer] = held
        if count:
            account.last_first[0] = least
            account.bytes_ready -= moved
            account.bytes_out += moved
        return count

    def _room(self, account: Account, consumer: int) -> Room | None:
        """Return the room of a consumer of the queue; None where a delivery to it is never plain."""
        known = self.product.attached.consumers.get(consumer)
        prefetches = self.product.prefetches
        if known is None or known[0] != account.key or account.single_active or account.levels.highest is not None:
            return None
        if consumer in prefetches.limited or self.product.words.waiting or not account.serves:
            return None
        most = _NO_ACK
        if not known[3]:
            most = prefetches.own.get(consumer, _WITHOUT_LIMIT) + prefetches.lookaheads.get(consumer, 0)
        self.rooms[consumer] = Room(account, most, prefetches.holding)
        return self.rooms[consumer]
