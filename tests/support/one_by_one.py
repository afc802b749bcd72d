"""Effects on one message each, from effects that name many: what a fold message by message would give."""

from collections.abc import Iterable, Iterator

from rewindmq.projections.machine.data.effects import Deliver, Effect, Keep


def deliveries_of(effect: Deliver) -> Iterator[Deliver]:
    """Yield an effect for each message that is delivered."""
    for message_id in effect.message_ids:
        yield Deliver(
            effect.queue,
            (message_id,),
            effect.consumer,
            effect.redelivered,
            effect.delivery_count,
            effect.final,
            effect.acquired_count,
            effect.passed,
        )


def one_by_one(effects: Iterable[Effect]) -> Iterator[Effect]:
    """Yield the effects; messages that arrive or are delivered have one each."""
    for effect in effects:
        if isinstance(effect, Deliver):
            yield from deliveries_of(effect)
        elif isinstance(effect, Keep):
            for message_id in effect.message_ids:
                yield Keep(effect.queue, (message_id,))
        else:
            yield effect


def delivered_id(effect: Deliver) -> int:
    """Return the only message that is delivered."""
    (message_id,) = effect.message_ids
    return message_id
