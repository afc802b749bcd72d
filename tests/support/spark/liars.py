"""Machines that are right about their state and lie once about an effect: what an audit finds of each lie."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.data.effects import DeadLetter, Deliver, Effect, Forget, Refuse, Requeue
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.fold import log_groups
from tests.support.one_by_one import one_by_one

Lie = Callable[[list[Effect]], bool]
Row = dict[str, Any]
Kind = TypeVar("Kind")


class Liar(Machine):
    """A machine that is right about its state, and once says something else than what it did."""

    def __init__(self, partition: str, lie: Lie) -> None:
        super().__init__(partition)
        self.lie = lie
        self.lied_at = -1

    @classmethod
    def over(cls, machine: Machine, lie: Lie, lied_at: int) -> "Liar":
        """A liar that has the state of `machine`, now and later: what one of the two applies, both have applied."""
        liar = cls.__new__(cls)
        liar.__dict__ = machine.__dict__
        liar.lie, liar.lied_at = lie, lied_at
        return liar

    def apply(
        self,
        offset: int,
        timestamp_ms: int,
        actor: Actor,
        event: Event,
        effects: list[Effect],
        sizes: Sequence[int] = (),
    ) -> int:
        count = super().apply(offset, timestamp_ms, actor, event, effects, sizes)
        if self.lied_at < 0 and self.lie(effects):
            self.lied_at = offset
        return count


def first(effects: list[Effect], kind: type[Kind], fits: Callable[[Kind], bool] = lambda effect: True) -> Kind | None:
    return next((effect for effect in effects if isinstance(effect, kind) and fits(effect)), None)


def hides(effects: list[Effect], found: Effect | None) -> bool:
    if found is not None:
        effects.remove(found)
    return found is not None


def hides_an_ack(effects: list[Effect]) -> bool:
    return hides(effects, first(effects, Forget, lambda f: f.reason == "acked"))


def acks_another(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "acked")
    if found:
        found.message_ids = [message_id - 1 for message_id in found.message_ids]
    return bool(found)


def delivers_twice(effects: list[Effect]) -> bool:
    found = first(effects, Deliver, lambda d: not d.final)
    if found:
        effects.append(found)
    return bool(found)


def forgets_to_say_redelivered(effects: list[Effect]) -> bool:
    found = first(effects, Deliver, lambda d: d.redelivered)
    if found:
        found.redelivered = False
    return bool(found)


def counts_a_delivery_too_few(effects: list[Effect]) -> bool:
    found = first(effects, Deliver, lambda d: d.delivery_count > 0)
    if found:
        found.delivery_count -= 1
    return bool(found)


def delivers_out_of_order(effects: list[Effect]) -> bool:
    effects[:] = one_by_one(effects)
    deliveries = [e for e in effects if isinstance(e, Deliver) and not e.redelivered and not e.final]
    if len(deliveries) < 2 or deliveries[0].queue is not deliveries[1].queue:
        return False
    one, two = deliveries[:2]
    one.message_ids, two.message_ids = two.message_ids, one.message_ids
    return True


def expires_what_was_dropped(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "maxlen")
    if found:
        found.reason = "expired"
    return bool(found)


def drops_what_expired(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "expired" and f.queue.settings.max_length is None)
    if found:
        found.reason = "maxlen"
    return bool(found)


def hides_a_refusal(effects: list[Effect]) -> bool:
    return hides(effects, first(effects, Refuse))


def gives_back_to_nobody(effects: list[Effect]) -> bool:
    return hides(effects, first(effects, Requeue))


def skips_a_dead_letter(effects: list[Effect]) -> bool:
    return hides(effects, first(effects, DeadLetter))


LIES: dict[Lie, tuple[str, ...]] = {
    hides_an_ack: ("conservation", "settlement"),
    acks_another: ("conservation", "settlement"),
    delivers_twice: ("conservation",),
    forgets_to_say_redelivered: ("deliveries",),
    counts_a_delivery_too_few: ("deliveries",),
    delivers_out_of_order: ("order",),
    expires_what_was_dropped: ("ttl",),
    drops_what_expired: ("limits",),
    hides_a_refusal: ("conservation",),
    gives_back_to_nobody: ("conservation", "settlement"),
    skips_a_dead_letter: ("dead letters",),
}


def audit_in_one(data: Path, number: int, machine: Machine) -> list[Row]:
    """Return the findings of an audit by this machine."""
    partition = EmbeddedLogReader(data).queues[number]
    groups = log_groups(data, partition.name, 0, partition.next_offset)
    batches = fold_events(AuditProduct(partition.name), machine, groups)
    return [row for found in batches for row in found.to_pylist() if not row["ok"]]
