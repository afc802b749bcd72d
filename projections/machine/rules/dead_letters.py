"""Dead letters: a message that died in a queue with a dead-letter exchange goes to the queue's outbox.

The outbox numbers dead letters (`sequence`, from 1), so that a target recognises a forward that it has already taken
in. It keeps them until `DeadLettersForwarded`. RabbitMQ forgets an at-most-once dead letter as soon as it is published;
ours stay until they are durable in the target, under either strategy (B-07). The strategy still decides two things:
at-least-once letters count towards the queue's limits (S-150), and are given up when the queue goes back to
at-most-once (S-153).

A recovered source may lack deaths whose letters its targets have. `DeadLettersForwarded.taken` names the last such
number, and the queue passes over it: otherwise its next letters would be dropped as repeats.

Messages that move with their queue to another partition are in the outbox, too. They are numbered with the others, and
arrive without waiting for them: the two kinds are released, and known to the target, each by itself.
"""

from array import array
from collections.abc import Iterator, Sequence

from rewindmq.projections.machine.data.delayed_order import exchange_of
from rewindmq.projections.machine.data.effects import DeadLetter, Effect, Release
from rewindmq.projections.machine.data.message_word import SIZE_MASK
from rewindmq.projections.machine.data.outbox import Carried, LetterKind
from rewindmq.projections.machine.data.queue import LetterSource, Queue
from rewindmq.projections.machine.data.reasons import DELAYED, MOVED, RELOCATED, DeathReason
from rewindmq.projections.machine.data.restored_ids import is_restored, note_restored
from rewindmq.projections.machine.state import State
from rewindmq.schemas.values import Origin


def bury(
    queue: Queue,
    ids: Sequence[int],
    words: Sequence[int],
    reason: DeathReason,
    effects: list[Effect],
    refused: bool = False,
) -> None:
    """Put messages that died, with these words, into the outbox, if the queue has a dead-letter exchange."""
    settings = queue.settings
    exchange, held = settings.dead_letter_exchange, settings.at_least_once
    if exchange is None or not ids:
        return
    if held:
        queue.messages_dlx += len(ids)
        queue.message_bytes_dlx += sum([word & SIZE_MASK for word in words])
    queue.dead_lettered += len(ids)
    _put_out(queue, ids, words, (reason, exchange, settings.dead_letter_routing_key, held, refused), effects)


def hand_on(queue: Queue, ids: Sequence[int], words: Sequence[int], effects: list[Effect]) -> None:
    """Put messages whose delay is over into the outbox of the delayed exchange's queue: the exchange routes them."""
    queue.dead_lettered += len(ids)
    _put_out(queue, ids, words, (DELAYED, exchange_of(queue.name), None, False, False), effects)


def move(
    queue: Queue, ids: Sequence[int], words: Sequence[int], exchange: str, routing_key: str, effects: list[Effect]
) -> None:
    """Put messages that an operator moves into the outbox. They did not die, and count towards no limit."""
    _put_out(queue, ids, words, (MOVED, exchange, routing_key, False, False), effects)


def relocate(
    queue: Queue, ids: Sequence[int], words: Sequence[int], carried: Sequence[Carried], effects: list[Effect]
) -> None:
    """Put messages that move with their queue into the outbox. They did not die, and count towards no limit."""
    queue.outbox.carried.update(enumerate(carried, queue.next_sequence))
    _put_out(queue, ids, words, (RELOCATED, "", None, False, False), effects, carried)


def _put_out(
    queue: Queue,
    ids: Sequence[int],
    words: Sequence[int],
    kind: LetterKind,
    effects: list[Effect],
    carried: Sequence[Carried] = (),
) -> None:
    first = queue.next_sequence
    queue.next_sequence = first + len(ids)
    queue.outbox.add(first, ids, [word & SIZE_MASK for word in words], kind)
    effects.append(_letters(queue, ids, first, kind, carried))


def _letters(queue: Queue, ids: Sequence[int], first: int, kind: LetterKind, carried: Sequence[Carried]) -> DeadLetter:
    reason, exchange, routing_key, held, refused = kind
    return DeadLetter(queue, ids, reason, first, exchange, routing_key, held, refused, carried)


def waiting_letters(queue: Queue) -> Iterator[DeadLetter]:
    """Yield the letters in the queue's outbox, as the effects that put them there."""
    outbox = queue.outbox
    for kind, first, ids in outbox.stretches():
        carried = [outbox.carried[first + at] for at in range(len(ids))] if kind[0] == RELOCATED else ()
        yield _letters(queue, ids, first, kind, carried)


def release_forwarded(state: State, queue: Queue, sequence: int, relocated: bool, effects: list[Effect]) -> None:
    """Release every dead letter up to `sequence`: it has arrived, or has nowhere to go.

    `relocated`: those that moved with the queue, and no others; else all others."""
    _release(state, queue, queue.outbox.up_to(sequence, relocated), effects)


def give_up_held(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Delete the letters that the queue held for at-least-once: it is no longer at-least-once (S-153)."""
    _release(state, queue, queue.outbox.held(), effects)


def _release(state: State, queue: Queue, places: "array[int]", effects: list[Effect]) -> None:
    if not places:
        return
    ids, held, held_bytes = queue.outbox.remove(places)
    queue.messages_dlx -= held
    queue.message_bytes_dlx -= held_bytes
    effects.append(Release(queue, ids))
    if queue.gone and not len(queue.outbox):
        state.drop_queue(queue)


def is_repeated(queue: Queue, origin: Origin, relocated: bool) -> bool:
    """Return True if the target has already taken in this dead letter.

    The forwards of one source arrive in the order of their sequence. `relocated`: the message moved with its queue."""
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
