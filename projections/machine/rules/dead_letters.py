"""Dead letters: a message that died in a queue with a dead-letter exchange goes to the queue's outbox.

The outbox numbers dead letters (`sequence`, from 1), so that a target recognises a forward that it has already taken
in. It keeps them until `DeadLettersForwarded`. RabbitMQ forgets an at-most-once dead letter as soon as it is published;
ours stay until they are durable in the target, under either strategy (B-07). The strategy still decides two things:
at-least-once letters count towards the queue's limits (S-150), and are given up when the queue goes back to
at-most-once (S-153).

Messages that move with their queue to another partition are in the outbox, too. They are numbered with the others, and
arrive without waiting for them: the two kinds are released, and known to the target, each by itself.
"""

from rewindmq.projections.machine.data.delayed_order import exchange_of
from rewindmq.projections.machine.data.effects import DeadLetter, Effect, Release
from rewindmq.projections.machine.data.queue import Carried, LetterSource, OutboxEntry, Queue
from rewindmq.projections.machine.data.reasons import DELAYED, MOVED, RELOCATED, DeathReason, LetterReason
from rewindmq.projections.machine.data.restored_ids import is_restored, note_restored
from rewindmq.projections.machine.state import State
from rewindmq.schemas.values import Origin


def bury(
    queue: Queue, message_id: int, size: int, reason: DeathReason, effects: list[Effect], refused: bool = False
) -> None:
    """Put a message that died into the outbox, if the queue has a dead-letter exchange."""
    settings = queue.settings
    exchange, routing_key, held = (
        settings.dead_letter_exchange,
        settings.dead_letter_routing_key,
        settings.at_least_once,
    )
    if exchange is None:
        return
    if held:
        queue.messages_dlx += 1
        queue.message_bytes_dlx += size
    queue.dead_lettered += 1
    _put_out(queue, message_id, size, reason, exchange, routing_key, held, refused, effects)


def hand_on(queue: Queue, message_id: int, size: int, effects: list[Effect]) -> None:
    """Put a message whose delay is over into the outbox of the delayed exchange's queue: the exchange routes it."""
    queue.dead_lettered += 1
    _put_out(queue, message_id, size, DELAYED, exchange_of(queue.name), None, False, False, effects)


def move(queue: Queue, message_id: int, size: int, exchange: str, routing_key: str, effects: list[Effect]) -> None:
    """Put a message that an operator moves into the outbox. It did not die, and counts towards no limit."""
    _put_out(queue, message_id, size, MOVED, exchange, routing_key, False, False, effects)


def relocate(queue: Queue, message_id: int, size: int, carried: Carried, effects: list[Effect]) -> None:
    """Put a message that moves with its queue into the outbox. It did not die, and counts towards no limit."""
    _put_out(queue, message_id, size, RELOCATED, "", None, False, False, effects, carried)


def _put_out(
    queue: Queue,
    message_id: int,
    size: int,
    reason: LetterReason,
    exchange: str,
    routing_key: str | None,
    held: bool,
    refused: bool,
    effects: list[Effect],
    carried: Carried | None = None,
) -> None:
    sequence = queue.next_sequence
    queue.next_sequence = sequence + 1
    entry = OutboxEntry(sequence, message_id, size, reason, exchange, routing_key, held, refused, carried)
    queue.outbox[sequence] = entry
    effects.append(DeadLetter(queue, message_id, reason, sequence, exchange, routing_key, held, refused, carried))


def release_forwarded(state: State, queue: Queue, sequence: int, relocated: bool, effects: list[Effect]) -> None:
    """Release every dead letter up to `sequence`: it has arrived, or has nowhere to go.

    `relocated`: those that moved with the queue, and no others; else all others."""
    released: list[OutboxEntry] = []
    for entry in queue.outbox.values():
        if entry.sequence > sequence:
            break
        if (entry.carried is not None) == relocated:
            released.append(entry)
    _release(state, queue, released, effects)


def give_up_held(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Delete the letters that the queue held for at-least-once: it is no longer at-least-once (S-153)."""
    _release(state, queue, [entry for entry in queue.outbox.values() if entry.at_least_once], effects)


def _release(state: State, queue: Queue, entries: list[OutboxEntry], effects: list[Effect]) -> None:
    if not entries:
        return
    for entry in entries:
        del queue.outbox[entry.sequence]
        if entry.at_least_once:
            queue.messages_dlx -= 1
            queue.message_bytes_dlx -= entry.size
    effects.append(Release(queue, [entry.message_id for entry in entries]))
    if queue.gone and not queue.outbox:
        state.drop_queue(queue)


def is_repeated(queue: Queue, origin: Origin, relocated: bool) -> bool:
    """Whether the target has already taken this dead letter in.

    Forwards of one source come in the order of their sequence. `relocated`: the message moved with its queue."""
    if origin.restore:
        return is_restored(queue, origin)
    return queue.letters_seen.get(_source(origin, relocated), 0) >= origin.sequence


def remember(queue: Queue, origin: Origin, relocated: bool) -> None:
    """Note that the target has taken this dead letter, or this restored message, in."""
    if origin.restore:
        note_restored(queue, origin)
        return
    queue.letters_seen[_source(origin, relocated)] = origin.sequence


def _source(origin: Origin, relocated: bool) -> LetterSource:
    return origin.vhost, origin.queue, origin.queue_id, origin.partition, relocated
