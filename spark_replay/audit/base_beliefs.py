"""Begins an audit in a history whose older part was trimmed: what its base holds counts as already there.

    believe(product, machine)     # machine: the state of the base

The audit derives everything from events. Of a trimmed part there are none. So the messages, consumers and counters of
the base are taken as true, and from the base on everything is derived again. `HistoryTrimmed` in the metadata log has
the digest of the base, and what was found in the trimmed part before it went.

Not known, and so not checked: which messages were delivered for the first time before the base, in which order;
whether a single active consumer had been challenged; and the ids of messages by which duplicates are dropped.
"""

from collections.abc import Iterator

from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.message_word import LEVEL_SHIFT, is_redelivered, seconds_of, size_of
from rewindmq.projections.machine.data.queue import Consumer, Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import QueueDeclared
from rewindmq.spark_replay.audit.books import Books
from rewindmq.spark_replay.audit.ledger import Account

NOT_COUNTED = ("refused", "duplicates", "dead_lettered")  # an account does not count them


def believe(product: Books, machine: Machine) -> None:
    """Let the audit begin with the state of a base."""
    product.offset = max(0, machine.next_offset - 1)
    product.now_ms = product.least_ms = machine.clock_ms
    product.ahead_ms = machine.ahead_ms
    product.lost = dict(machine.lost_epochs)
    product.claims.begin(machine)
    for queue in machine.by_id.values():
        product.letters[queue.queue_id] = queue.next_sequence - 1
        if product.letter_rows is not None:
            product.letter_rows.begin(queue, machine.next_offset, machine.log_ms)
        if queue.gone:
            continue
        for policy in (queue.policy, queue.operator_policy):
            if policy is not None:
                product.policies.setdefault((queue.vhost, policy), product.offset)
        product.open_account(_account(product, queue))
        for holder in queue.holders.values():
            _believe_holder(product, queue, holder)
        if queue.single_active and queue.active is not None:
            product.attached.believe_active((queue.vhost, queue.name), queue.active.consumer)


def _believe_holder(product: Books, queue: Queue, holder: Consumer) -> None:
    key, channel = (queue.vhost, queue.name), (holder.session, holder.channel)
    prefetches = product.prefetches
    product.attached.uses(holder.session, key)
    prefetches.believe_held(holder.consumer, len(holder.held))
    if not holder.attached:
        return
    product.attached.add(holder.consumer, (key, *channel, holder.no_ack, holder.priority))
    prefetches.add(holder.consumer, key, channel, 0 if holder.no_ack else holder.prefetch, queue.quorum)
    prefetches.look_ahead(holder.consumer, holder.lookahead)
    if holder.limiter is not None:
        limited = holder.limiter.session, holder.limiter.channel
        prefetches.share(holder.consumer, limited, holder.limiter.limit)


def _account(product: Books, queue: Queue) -> Account:
    """Return the account of a queue, with the messages that it holds."""
    declared = QueueDeclared(
        queue.vhost,
        queue.name,
        type=queue.type,
        durable=queue.durable,
        exclusive=queue.exclusive,
        auto_delete=queue.auto_delete,
        owner=queue.owner,
        arguments=queue.arguments,
        semantics=queue.semantics,
        policy=queue.policy,
        operator_policy=queue.operator_policy,
    )
    account = Account(queue, declared, product.fail, product.now_ms)
    account.counters = {name: value for name, value in queue.counters.items() if name not in NOT_COUNTED}
    account.letters = dict(queue.letters_seen)
    account.restored = {
        source: {each for first, last in ranges for each in range(first, last + 1)}
        for source, ranges in queue.restored.items()
    }
    account.crashed = queue.crash_offset
    account.paused = queue.paused
    account.since = product.offset + 1
    for message_id, word, expiry, holder in _messages(queue):
        account.take_in(message_id, size_of(word))
        if account.stream:
            account.published[message_id] = queue.created_ms + 1000 * seconds_of(word)
            continue
        if expiry != NONE:
            account.expires[message_id] = expiry
        _believe_deliveries(account, message_id, word)
        if holder is not None:
            account.hand_out(message_id, holder)
    if queue.delayed is not None:
        for message_id, word, due_ms in queue.delayed.items():
            account.take_in(message_id, size_of(word))
            account.set_aside(message_id, due_ms)
            if message_id in queue.held_expiries:
                account.expires[message_id] = queue.held_expiries[message_id]
            _believe_deliveries(account, message_id, word)
    _believe_levels(account, queue)
    return account


def _messages(queue: Queue) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield id, word, expiry and holder of the ready and the unacked messages."""
    for order in (queue.returned, queue.arrived):
        for message_id, word, expiry in order.items():
            yield message_id, word, expiry, None
    for holder in queue.holders.values():
        for message_id, word in holder.held.items():
            yield message_id, word, queue.held_expiries.get(message_id, NONE), holder.consumer


def _believe_deliveries(account: Account, message_id: int, word: int) -> None:
    """Take over how often a message was delivered and came back."""
    failures, acquired = account.queue.counts(word)
    if failures:
        account.counted[message_id] = failures
    if account.later and acquired:
        account.returned[message_id] = acquired
    elif is_redelivered(word):
        if account.later:
            account.flagged[message_id] = None
        else:
            account.returned[message_id] = 1  # at least


def _believe_levels(account: Account, queue: Queue) -> None:
    """Take over the priorities of all messages."""
    levels, prioritized = account.levels, queue.prioritized
    if levels.highest is None or prioritized is None:
        return
    back = set(queue.returned.ids())
    words = [(message_id, word) for message_id, word, _, _ in _messages(queue)]
    if queue.delayed is not None:
        words += [(message_id, word) for message_id, word, _ in queue.delayed.items()]
    for message_id, word in words:
        ready = message_id not in account.out and message_id not in account.waiting
        levels.believe(message_id, word >> LEVEL_SHIFT & prioritized.mask, ready, message_id in back)
