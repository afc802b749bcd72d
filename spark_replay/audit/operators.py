"""Books what operators do to a queue: purge it, take single messages out, pause it, move it to another partition.

The events alone say it (schemas/operator_events.py): this file does not look at the machine.
"""

from collections.abc import Sequence
from typing import Final

from rewindmq.projections.machine.data.effects import Effect, Forget, Quarantine
from rewindmq.projections.machine.data.reasons import RELOCATED
from rewindmq.schemas.events import Purged, QueueDrained
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused, QueueResumed
from rewindmq.spark_replay.audit.books import Books
from rewindmq.spark_replay.audit.checks import SETTLEMENT
from rewindmq.spark_replay.audit.ledger import Account

OF_OPERATORS: Final = (Purged, MessageRemoved, QueuePaused, QueueResumed, QueueDrained)
_Event = Purged | MessageRemoved | QueuePaused | QueueResumed | QueueDrained


def book_operator(product: Books, event: _Event, effects: Sequence[Effect]) -> None:
    """Book a pause or its end, before the effects of the event: they are deliveries at its end."""
    account = _account(product, event, effects)
    if account is None or not isinstance(event, QueuePaused | QueueResumed):
        return
    account.paused = isinstance(event, QueuePaused)
    if account.paused:
        product.prefetches.end_lookaheads(account.key)


def check_operator(product: Books, event: _Event, effects: Sequence[Effect]) -> None:
    """Check, after the effects of the event, that every message left that had to."""
    account = _account(product, event, effects)
    if account is None:
        return
    if isinstance(event, Purged) and account.ready:
        account.fail(SETTLEMENT, None, f"purged, and {account.ready} are still ready")
    elif isinstance(event, MessageRemoved):
        for message_id in account.still_there(event):
            account.fail(SETTLEMENT, message_id, "an operator took it out, and it is still there")
    elif isinstance(event, QueueDrained) and account.queue.queue_id == event.queue_id:
        left = sum(len(each.message_ids) for each in effects if isinstance(each, Forget) and each.reason == RELOCATED)
        there = account.ready + len(account.waiting)
        if left > event.count or (left < event.count and there):
            account.fail(
                SETTLEMENT, None, f"{left} left for another partition, {event.count} should, {there} are there"
            )


def _account(product: Books, event: _Event, effects: Sequence[Effect]) -> Account | None:
    """Return the account of the queue; None if the event makes no sense."""
    if any(isinstance(effect, Quarantine) for effect in effects):
        return None
    return product.accounts.get((event.vhost, event.queue))
