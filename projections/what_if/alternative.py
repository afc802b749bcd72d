"""Folds a history under another policy: the queue machine gets the recorded events, some of them changed.

An `Alternative` is such a machine, beside the machine of the recorded fold.

    declarations and policies     of queues whose names the candidate's pattern finds: the candidate replaces them
    acks, nacks, rejects          settle the same message, with the consumer that holds it here. If it is not yet
                                  delivered here, they settle it as soon as it is (a late reaction). One that settled
                                  nothing (late, from a lost node) settles nothing here
    a message that is delivered   here, and that no consumer ever met in the recorded fold (dropped, refused, expired
                                  before its delivery), is acked as soon as the recorded fold has ended it: a guess,
                                  counted as such
    left-out events               (exclusion.py) do not happen, nor do acks of left-out messages. If a left-out event
                                  settled a message, the message is acked as soon as another consumer gets it, also a
                                  guess
    all other events              happen as recorded: publishes, arriving dead letters, attached and cancelled consumers

So an alternative shows the effect of the limits on the same traffic. It does not show what consumers would have done
with other deliveries, because nobody knows that.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.machine.data.effects import (
    Delay,
    Deliver,
    Effect,
    FetchReply,
    Forget,
    Refuse,
    Requeue,
)
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rules.patterns import in_history
from rewindmq.projections.what_if.exclusion import Exclusion
from rewindmq.schemas.events import Acked, Event, Nacked, PolicyApplied, Published, QueueDeclared
from rewindmq.schemas.values import BROKER, Actor, Argument, ArgumentValue, Policy

LIMITS = (  # of what an alternative can know, for people
    "Consumers act as they did in fact: nobody knows what they would have done with other deliveries.",
    "Each ack and nack settles the message that it settled in fact, as soon as the message is delivered in the"
    " candidate's world (late_reactions; lost_reactions, if it never is).",
    "A message that only there reaches a consumer is taken as acked as soon as it is gone in fact, too (guessed_acks)."
    " While it is still in the queue in fact, it stays with the consumer, unacked.",
    "Dead letters arrive in their targets as they did.",
)

Key = tuple[str, str, int]  # vhost, queue, message id: the same in every alternative


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change to try out, for the queues whose name `pattern` finds.

    `definition`, `operator_definition`: replace their policy and operator policy (None: as recorded).
    `arguments`: replace those of their declarations (None removes one). `semantics`: another profile. `without`: the
    left-out events."""

    name: str
    pattern: str
    definition: dict[str, object] | None = None
    arguments: dict[str, ArgumentValue] = field(default_factory=dict)
    semantics: str | None = None
    without: Exclusion | None = None
    operator_definition: dict[str, object] | None = None

    def concerns(self, queue: str) -> bool:
        """Return True if the candidate changes this queue."""
        return in_history(self.pattern).found_in(queue)

    def policy(self, definition: dict[str, object]) -> Policy:
        """Return a policy of the candidate. It has no version: it was never set."""
        return Policy(self.name, canonical_json(definition), -1)

    def changed(self, event: QueueDeclared | PolicyApplied) -> QueueDeclared | PolicyApplied:
        """Return the event as it would be under the candidate."""
        if not self.concerns(event.queue):
            return event
        if self.definition is not None:
            event = replace(event, policy=self.policy(self.definition))
        if self.operator_definition is not None:
            event = replace(event, operator_policy=self.policy(self.operator_definition))
        if isinstance(event, PolicyApplied):
            return event
        kept = tuple(each for each in event.arguments if each.name not in self.arguments)
        given = tuple(argument(name, value) for name, value in self.arguments.items() if value is not None)
        return replace(event, arguments=kept + given, semantics=self.semantics or event.semantics)


def argument(name: str, value: ArgumentValue) -> Argument:
    """Return a queue argument with AMQP's type for this value."""
    kind = {bool: "bool", int: "long", float: "double"}.get(type(value), "longstr")
    return Argument(name, kind, value if kind != "longstr" else str(value))


class Alternative:
    """A copy of `machine` at its offset, with the candidate in effect from here on."""

    def __init__(self, candidate: Candidate, machine: Machine) -> None:
        self.candidate = candidate
        pieces = ((meta, chunks) for _, meta, chunks in machine.pieces())
        self.machine = Machine.load(machine.partition, machine.head(), pieces)
        self.assumed = {"late_reactions": 0, "lost_reactions": 0, "guessed_acks": 0}
        self._effects: list[Effect] = []
        self._seen = 0  # the number already checked
        self._reacting = False
        self._late: dict[Key, deque[Acked | Nacked]] = {}  # reactions to messages not yet delivered here
        self._unmet: set[Key] = set()  # not ended here, and never met by a consumer
        self.left_out: set[int] = set()  # messages that never existed here
        for queue in list(self.machine.queues()):
            if candidate.concerns(queue.name):
                event = PolicyApplied(queue.vhost, queue.name, queue.policy, queue.operator_policy)
                at = self.machine.next_offset - 1
                self.machine.apply(at, self.machine.log_ms, BROKER, candidate.changed(event), self._effects)

    def apply(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, settled: Sequence[int] = ()) -> None:
        """Apply an event. `settled`: the messages that it settled in the recorded fold."""
        without = self.candidate.without
        if without is not None and without.leaves_out(self.machine.partition, offset, timestamp_ms, actor):
            self._leave_out(offset, timestamp_ms, event, settled)
        elif isinstance(event, Acked | Nacked):
            self._nothing(offset, timestamp_ms)
            for message_id in settled:
                if message_id not in self.left_out:
                    self._react(offset, timestamp_ms, actor, event, message_id)
        else:
            if isinstance(event, QueueDeclared | PolicyApplied):
                event = self.candidate.changed(event)
            self._do(offset, timestamp_ms, actor, event)

    def _nothing(self, offset: int, timestamp_ms: int) -> None:
        """Let time pass, as it does before any event."""
        self.machine.advance(timestamp_ms, self._effects)
        self.machine.skip(offset)

    def _leave_out(self, offset: int, timestamp_ms: int, event: Event, settled: Sequence[int]) -> None:
        self._nothing(offset, timestamp_ms)
        if isinstance(event, Published):
            self.left_out.add(offset)
        elif isinstance(event, Acked) or (isinstance(event, Nacked) and not event.requeue):
            self.never_met(offset, timestamp_ms, [(event.vhost, event.queue, each) for each in settled])

    def never_met(self, offset: int, timestamp_ms: int, keys: list[Key]) -> None:
        """Note messages that the recorded fold has ended, and that no consumer settled."""
        for key in keys:
            vhost, name, message_id = key
            queue = self.machine.queue(vhost, name)
            if queue is None or message_id in self.left_out:
                continue
            held = holder_of(queue, message_id)
            if held is not None:
                self._guess(offset, timestamp_ms, queue, held, message_id)
            else:
                self._unmet.add(key)

    @property
    def effects(self) -> Sequence[Effect]:
        """Return the effects that are not yet taken."""
        return self._effects

    def take(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self._effects, self._seen = self._effects, [], 0
        for effect in effects:
            if isinstance(effect, Forget):
                for message_id in effect.message_ids:
                    key = (effect.queue.vhost, effect.queue.name, message_id)
                    self._unmet.discard(key)
                    late = self._late.pop(key, None)
                    self.assumed["lost_reactions"] += len(late) if late else 0
            elif isinstance(effect, Refuse):
                self._unmet.discard((effect.queue.vhost, effect.queue.name, effect.message_id))
        return effects

    def _do(self, offset: int, timestamp_ms: int, actor: Actor, event: Event) -> None:
        """Apply the event, and let consumers react to its deliveries."""
        self.machine.apply(offset, timestamp_ms, actor, event, self._effects)
        if self._reacting:  # it is itself a reaction: the loop below continues with its effects
            return
        self._reacting = True
        while self._seen < len(self._effects):
            effect = self._effects[self._seen]
            self._seen += 1
            if isinstance(effect, Deliver) and not effect.final:
                for message_id in effect.message_ids:
                    self._met(offset, timestamp_ms, effect, message_id)
            elif isinstance(effect, FetchReply) and not effect.final and effect.message_id >= 0:
                self._met(offset, timestamp_ms, effect, effect.message_id)
        self._reacting = False

    def _met(self, offset: int, timestamp_ms: int, effect: Deliver | FetchReply, message_id: int) -> None:
        queue = effect.queue
        key = (queue.vhost, queue.name, message_id)
        late = self._late.get(key)
        if late:
            event = late.popleft()
            if not late:
                del self._late[key]
            self.assumed["late_reactions"] += 1
            self._settle(offset, timestamp_ms, BROKER, event, effect.consumer, message_id)
        elif key in self._unmet:
            self._guess(offset, timestamp_ms, queue, effect.consumer, message_id)

    def _react(self, offset: int, timestamp_ms: int, actor: Actor, event: Acked | Nacked, message_id: int) -> None:
        queue = self.machine.queue(event.vhost, event.queue)
        held = None if queue is None else holder_of(queue, message_id, event.consumer)
        if held is not None:
            self._settle(offset, timestamp_ms, actor, event, held, message_id)
        else:
            self._late.setdefault((event.vhost, event.queue, message_id), deque()).append(event)

    def _settle(
        self, offset: int, timestamp_ms: int, actor: Actor, event: Acked | Nacked, holder: int, message_id: int
    ) -> None:
        self._do(offset, timestamp_ms, actor, replace(event, consumer=holder, messages=((message_id, message_id),)))

    def _guess(self, offset: int, timestamp_ms: int, queue: Queue, holder: int, message_id: int) -> None:
        self.assumed["guessed_acks"] += 1
        event = Acked(queue.vhost, queue.name, holder, ((message_id, message_id),))
        self._do(offset, timestamp_ms, BROKER, event)

    def left_over(self) -> None:
        """Count, at the end, the reactions to messages that were never delivered here."""
        self.assumed["lost_reactions"] += sum(map(len, self._late.values()))


def settled_by(event: Event, effects: Sequence[Effect]) -> list[int]:
    """Return the messages that an ack or nack settled, by its effects.

    It may name others, which its consumer does not hold (late, from a lost node), and more than can be counted."""
    found: list[int] = []
    if isinstance(event, Acked | Nacked):
        for effect in effects:
            if isinstance(effect, Forget | Requeue) and effect.consumer == event.consumer:
                found += effect.message_ids
            elif isinstance(effect, Delay) and effect.consumer == event.consumer:
                found.append(effect.message_id)
    return found


def holder_of(queue: Queue, message_id: int, first: int = 0) -> int | None:
    """Return the consumer that holds the message; `first` is checked first. None: no consumer holds it."""
    holder = queue.holders.get(first)
    if holder is not None and message_id in holder.held:
        return first
    return next((number for number, each in queue.holders.items() if message_id in each.held), None)
