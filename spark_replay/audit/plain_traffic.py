"""Books plain publishes and acks in few steps: most of a history is nothing else.

    plain.published(offset, actor, event, effects)   True: the one queue of its route took the message; all is booked
    plain.acked(offset, event, effects)              True: the consumer had the messages, and they left; all is booked
    plain.delivered(account, effect)                 True: nothing is odd about this first delivery, and it is booked
    plain.forget()                                   consumers, policies or queues may have changed

This file finds nothing. It looks at all that fold.py, ledger.py, consumers.py and prefetch.py look at, and books what
they would book, if none of them could say anything. Else it books nothing and says False: then they judge.
tests/unit/machine/test_machine_audited_plainly.py holds it against them: equal books, also of machines that lie.
"""

from typing import TYPE_CHECKING

from rewindmq.projections.machine.data.effects import Deliver, Effect, Forget, Keep
from rewindmq.projections.machine.data.message_word import SIZE_MASK
from rewindmq.projections.machine.data.reasons import ACKED, DELIVERED
from rewindmq.schemas.events import Acked, Published
from rewindmq.schemas.values import Actor, Route
from rewindmq.spark_replay.audit.ledger import Account

if TYPE_CHECKING:
    from rewindmq.spark_replay.audit.fold import AuditProduct

_REMEMBERED = 10_000  # routes
_WITHOUT_LIMIT, _NO_ACK = 1 << 62, 0  # room of consumers: without a prefetch, and of those that hold nothing


class PlainTraffic:
    """What stays as it is while messages come and go: the queues of routes, and the room of consumers."""

    def __init__(self, product: "AuditProduct") -> None:
        self.product = product
        self.accounts: dict[Route, Account] = {}  # of routes with one queue, which takes plain messages
        self.rooms: dict[int, tuple[Account, int]] = {}  # consumer -> its queue's account, and how many it may hold

    def forget(self) -> None:
        """Begin anew: consumers, policies or queues may have changed."""
        self.accounts.clear()
        self.rooms.clear()

    def learn(self, route: Route, account: Account) -> None:
        """Note the only queue that publishes of this route go to."""
        own_way = account.stream or account.delays or account.levels.highest is not None
        known = "published" in account.counters and not self.product.words.waiting
        if known and not (own_way or account.limits.message_ttl_ms is not None or self.product.lost):
            if len(self.accounts) >= _REMEMBERED:
                self.accounts.clear()
            self.accounts[route] = account

    def published(self, offset: int, actor: Actor, event: Published, effects: list[Effect]) -> bool:
        """Book a message that stayed in its queue, or went straight to a consumer, and compare the books."""
        account = self.accounts.get(event.route)
        size = event.body_size
        if (
            account is None
            or event.origin is not None
            or event.expiration_ms is not None
            or not 0 <= size <= SIZE_MASK
            or actor.session == 0
            or offset in account.sizes
            or not 0 < len(effects) < 3
        ):
            return False
        keep, deliver = effects[0], effects[1] if len(effects) == 2 else None
        if type(keep) is Deliver and deliver is None:
            return self._passed(account, offset, keep)
        if type(keep) is not Keep or keep.queue is not account.queue:
            return False
        if deliver is not None and (type(deliver) is not Deliver or deliver.queue is not account.queue):
            return False
        account.sizes[offset] = size
        account.bytes_ready += size
        account.counters["published"] += 1
        if deliver is not None and not self.delivered(account, deliver):
            self.product.book_delivery(account, deliver)
        account.compare(offset)
        return True

    def _passed(self, account: Account, offset: int, effect: Deliver) -> bool:
        """Book a message that went straight to a consumer without acknowledgement, and compare the books."""
        room = self.rooms.get(effect.consumer) or self._room(account, effect.consumer)
        if (
            room != (account, _NO_ACK)
            or effect.queue is not account.queue
            or effect.message_id != offset
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
        account.compare(offset)
        return True

    def acked(self, offset: int, event: Acked, effects: list[Effect]) -> bool:
        """Book messages that left their queue as the consumer that had them acked them, and compare the books.

        Deliveries may follow."""
        consumer = event.consumer
        account, _ = self.rooms.get(consumer, (None, 0))
        if account is None or account.key != (event.vhost, event.queue):
            return False
        queue, asked = account.queue, 0
        for first, last in event.messages:
            asked += last - first + 1
        for effect in effects:
            if type(effect) is Forget and effect.reason == ACKED and effect.consumer == consumer:
                asked -= len(effect.message_ids)
            elif type(effect) is not Deliver:
                return False
            if effect.queue is not queue:
                return False
        if asked:
            return False
        for effect in effects:
            if type(effect) is Forget:
                self.product.book_leaving(account, event, effect)
            elif type(effect) is Deliver and not self.delivered(account, effect):
                self.product.book_delivery(account, effect)
        account.compare(offset)
        return True

    def delivered(self, account: Account, effect: Deliver) -> bool:
        """Book the first delivery of a message to a consumer with room, which acks."""
        message_id, consumer = effect.message_id, effect.consumer
        room = self.rooms.get(consumer) or self._room(account, consumer)
        size = account.sizes.get(message_id)
        holding = self.product.prefetches.holding
        held = holding.get(consumer, 0)
        if (
            room is None
            or room[0] is not account
            or held >= room[1]
            or size is None
            or effect.redelivered
            or effect.final
            or effect.delivery_count
            or effect.acquired_count
            or message_id in account.out
            or message_id in account.returned
            or message_id in account.waiting
            or message_id in account.expires
            or message_id in account.flagged
            or message_id in account.counted
            or message_id < account.crashed
            or message_id < account.last_first.get(0, -1)
        ):
            return False
        account.last_first[0] = message_id
        account.out[message_id] = consumer
        account.bytes_ready -= size
        account.bytes_out += size
        holding[consumer] = held + 1
        return True

    def _room(self, account: Account, consumer: int) -> tuple[Account, int] | None:
        """The room of a consumer of the queue; None where a delivery to it is never plain."""
        known = self.product.attached.consumers.get(consumer)
        prefetches = self.product.prefetches
        if known is None or known[0] != account.key or account.single_active or account.levels.highest is not None:
            return None
        if consumer in prefetches.limited or self.product.words.waiting or account.paused:
            return None
        most = (
            _NO_ACK
            if known[3]
            else prefetches.own.get(consumer, _WITHOUT_LIMIT) + prefetches.lookaheads.get(consumer, 0)
        )
        self.rooms[consumer] = account, most
        return self.rooms[consumer]
