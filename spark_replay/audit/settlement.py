"""Checks that an ack or nack settles as many messages as it names."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rewindmq.projections.machine.data.effects import Delay, Deliver, Forget, Quarantine, Requeue
from rewindmq.schemas.events import Acked, Nacked
from rewindmq.spark_replay.audit.checks import SETTLEMENT

if TYPE_CHECKING:
    from rewindmq.spark_replay.audit.fold import AuditProduct


def check_settlement(product: "AuditProduct", event: Acked | Nacked, effects: Sequence[Any]) -> None:
    """Report a finding if the effects settle more or fewer messages. A quarantined event settles none."""
    requested = settled = 0
    for first, last in event.messages:
        requested += last - first + 1
    consumer = event.consumer
    for effect in effects:  # `Any`: a union of types would be made anew for each event
        kind = type(effect)
        if kind is Deliver:
            continue
        if kind is Quarantine:
            return
        if (kind is Forget or kind is Requeue) and effect.consumer == consumer:
            settled += len(effect.message_ids)
        elif kind is Delay and effect.consumer == consumer:
            settled += 1
    if settled != requested:
        name = f"{event.vhost}/{event.queue}"
        product.fail(SETTLEMENT, name, None, f"{type(event).__name__} of {requested} messages settled {settled}")
