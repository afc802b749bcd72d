"""Dead letters one by one, as tests look at them, from effects that name many."""

from collections.abc import Iterator

from rewindmq.projections.machine.data.effects import DeadLetter
from rewindmq.projections.machine.data.outbox import Carried

Told = list[tuple[object, ...]]


def one_by_one(letters: DeadLetter) -> Iterator[DeadLetter]:
    """Yield an effect for each message."""
    for at, message_id in enumerate(letters.message_ids):
        yield DeadLetter(
            letters.queue,
            (message_id,),
            letters.reason,
            letters.sequence + at,
            letters.exchange,
            letters.routing_key,
            letters.at_least_once,
            letters.refused,
            tuple(letters.carried[at : at + 1]),
        )


def message_of(letter: DeadLetter) -> int:
    """Return the only message of a letter."""
    (message_id,) = letter.message_ids
    return message_id


def carried_of(letter: DeadLetter) -> Carried | None:
    """Return what the only message of a letter keeps; None: it did not move with its queue."""
    return letter.carried[0] if letter.carried else None


def message_by_message(told: Told) -> Told:
    """Put each letter right behind the outcome that its message left the queue.

    Many messages leave in one effect, and their letters are another one. What is left is the order of the messages."""
    letters = {outcome[1:3]: outcome for outcome in told if outcome[0] == "dead letter"}
    paired: Told = []
    for outcome in told:
        if outcome[0] != "dead letter":
            paired.append(outcome)
            if outcome[0] == "forget" and outcome[1:3] in letters:
                paired.append(letters.pop(outcome[1:3]))
        elif outcome[1:3] in letters:
            paired.append(letters.pop(outcome[1:3]))
    return paired
