"""Compares how messages end in a recorded fold and in an alternative of it (alternative.py)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rewindmq.projections.history.outcomes import REFUSED
from rewindmq.projections.machine.data.effects import Effect, Forget, Refuse, endings
from rewindmq.projections.machine.data.reasons import ACKED, DELIVERED, DELIVERY_LIMIT, REJECTED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.what_if.alternative import Alternative, Key, holder_of, settled_by
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import Actor

SETTLED = (ACKED, REJECTED, DELIVERED, DELIVERY_LIMIT)  # by a consumer
UNACKED, READY = "unacked", "ready"  # fates of messages that remain at the end
LEFT_OUT = "left_out"  # the message never existed

Fate = tuple[str, int, str]  # the message's fate, its time, and the rule that decided ("": none)


@dataclass(frozen=True, slots=True)
class FateDifference:
    """A message that ends differently, with its fate as recorded and in the alternative."""

    vhost: str
    queue: str
    message_id: int
    before: Fate
    after: Fate


class TooManyApart(Exception):
    """More than `most` messages have ended in only one of the two folds."""


class LaterOutcomes:
    """A comparison of the fates of each message in an alternative and in the recorded fold.

    It remembers only messages that ended in one of the two, or that ended differently. `only`: compares just this queue
    (vhost, name). `most`: the limit of remembered messages."""

    def __init__(
        self,
        alternative: Alternative,
        machine: Machine,
        only: tuple[str, str] | None = None,
        most: int | None = None,
    ) -> None:
        self.alternative = alternative
        self.machine = machine
        self.ended_before: Counter[tuple[str, str]] = Counter()  # messages that ended, by fate and rule
        self.ended_after: Counter[tuple[str, str]] = Counter()
        self._only = only
        self._most = most
        self._before: dict[Key, Fate] = {}
        self._after: dict[Key, Fate] = {}
        self._new: list[Key] = []  # ended in one of the two folds since the last comparison

    def event(
        self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]
    ) -> list[FateDifference]:
        """Apply an event to the alternative, which the recorded fold has just applied, with these effects.

        Returns the messages that have now ended in both, but differently. Raises TooManyApart; this event is then not
        counted, and no other may follow."""
        settled = settled_by(event, effects[self.machine.time_passed_at(offset) :])
        self.alternative.apply(offset, timestamp_ms, actor, event, settled)
        self._require_room(effects)
        self.alternative.never_met(offset, timestamp_ms, self._recorded(timestamp_ms, effects))
        return list(self._tried(timestamp_ms, self.alternative.take()))

    def undecodable(self, offset: int) -> None:
        """Skip a record that the recorded fold has skipped."""
        self.alternative.machine.skip(offset)

    def _require_room(self, effects: Sequence[Effect]) -> None:
        """Raise TooManyApart, and forget the effects, if they end too many messages."""
        if self._most is None:
            return
        new = sum(
            len(effect.message_ids)
            for each in (effects, self.alternative.effects)
            for effect in each
            if isinstance(effect, Forget) and self._is_wanted(effect.queue.vhost, effect.queue.name)
        )
        if len(self._before) + len(self._after) + new > self._most:
            self.alternative.take()
            raise TooManyApart

    def _is_wanted(self, vhost: str, queue: str) -> bool:
        return self._only is None or self._only == (vhost, queue)

    def _recorded(self, timestamp_ms: int, effects: Sequence[Effect]) -> list[Key]:
        """Add recorded effects. Return messages that ended unsettled, but not yet in the alternative."""
        unmet = []
        for key, fate in self._endings(timestamp_ms, effects):
            self._before[key] = fate
            self._new.append(key)
            self.ended_before[fate[0], fate[2]] += 1
            if fate[0] not in SETTLED and key not in self._after:
                unmet.append(key)
        return unmet

    def _tried(self, timestamp_ms: int, effects: Sequence[Effect]) -> Iterator[FateDifference]:
        """Add the alternative's effects. Yield messages that have ended in both, but differently."""
        for key, fate in self._endings(timestamp_ms, effects):
            self._after[key] = fate
            self._new.append(key)
            self.ended_after[fate[0], fate[2]] += 1
        new, self._new = self._new, []
        for key in new:
            if key not in self._before or key not in self._after:
                continue
            before, after = self._before.pop(key), self._after.pop(key)
            if before[0] != after[0]:
                yield FateDifference(*key, before, after)

    def at_end(self) -> Iterator[FateDifference]:
        """Yield messages that ended in only one of the two folds. Raises TooManyApart."""
        self._require_room(())  # if no event followed, nobody has seen the candidate's immediate effects
        yield from self._tried(self.machine.log_ms, self.alternative.take())
        self.alternative.left_over()
        left_out = self.alternative.left_out
        never: Fate = (LEFT_OUT, self.machine.log_ms, "")
        for key, before in self._before.items():
            after = never if key[2] in left_out else _standing(self.alternative.machine, key)
            yield FateDifference(*key, before, after)
        for queue in list(self.machine.queues()) if left_out else ():
            for view in queue.messages():
                if view.message_id in left_out:
                    key = (queue.vhost, queue.name, view.message_id)
                    yield FateDifference(*key, _standing(self.machine, key), never)
        for key, after in self._after.items():
            yield FateDifference(*key, _standing(self.machine, key), after)

    def _endings(self, timestamp_ms: int, effects: Sequence[Effect]) -> Iterator[tuple[Key, Fate]]:
        """Yield the messages that ended, including refused ones, with their fates."""
        for queue, message_id, reason, rule in endings(effects):
            if self._is_wanted(queue.vhost, queue.name):
                yield (queue.vhost, queue.name, message_id), (reason, timestamp_ms, rule)
        for effect in effects:
            if isinstance(effect, Refuse) and self._is_wanted(effect.queue.vhost, effect.queue.name):
                key = (effect.queue.vhost, effect.queue.name, effect.message_id)
                yield key, (REFUSED, timestamp_ms, effect.rule)


def length(machine: Machine, vhost: str, name: str) -> int:
    """Return the number of messages in a queue, ready and unacked; 0 if there is no such queue."""
    queue = machine.queue(vhost, name)
    return 0 if queue is None else queue.messages_ready + queue.messages_unacked


def _standing(machine: Machine, key: Key) -> Fate:
    queue = machine.queue(key[0], key[1])
    unacked = queue is not None and holder_of(queue, key[2]) is not None
    return UNACKED if unacked else READY, machine.log_ms, ""
