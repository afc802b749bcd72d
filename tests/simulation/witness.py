"""The observations of clients and of the broker's own parts, noted as they happen. `judge.py` checks them by the log.

A life is one broker process, from its start to its stop or crash. The witness notes:

    performed    every effect that was carried out, per life and partition, as plain tuples
    received     the deliveries of each consumer, in order
    published    every publish, where it went, and the answer to the publisher
    claims       digests of live state, snapshots and stored state, each with its offset
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rewindmq.projections.machine.data.effects import Deliver, Effect, FetchReply

EffectRow = tuple[Any, ...]
_NAMES: dict[type, tuple[str, ...]] = {}


def row_of(effect: Effect) -> EffectRow:
    """An effect as a tuple that stays as it is: its name, then its fields, queues by their id."""
    kind = type(effect)
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = tuple(each.name for each in fields(effect))
    return (kind.__name__, *[_plain(name, getattr(effect, name)) for name in names])


def received_row(effect: Deliver | FetchReply, message_id: int) -> EffectRow:
    """Return the part of the effect that a client sees of a message."""
    return (effect.queue.queue_id, message_id, effect.redelivered, effect.delivery_count, effect.final)


def _plain(name: str, value: Any) -> Any:
    if name == "queue":
        return value.queue_id
    return tuple(value) if name == "message_ids" else value


@dataclass
class Life:
    """`began`: each partition's first offset of this life; `ended`: the offset behind its last that anybody could have
    seen (None: it lives). `crashed`: not stopped cleanly."""

    number: int
    began: list[int]
    stored: list[int]  # where the stored state stood
    replayed: list[list[EffectRow]]  # effects of the recovery, from `stored` to `began`
    performed: list[list[EffectRow]]
    ended: list[int] | None = None
    crashed: bool = False


@dataclass
class Publish:
    body: bytes
    life: int
    places: list[tuple[int, int]] = field(default_factory=list)  # partition, offset
    answers: dict[int, bool] = field(default_factory=dict)  # by place: was it refused?
    prompt: set[int] = field(default_factory=set)  # places whose confirm does not wait for the disk


@dataclass(frozen=True)
class Claim:
    """`digest` is that of the state after everything below `offset`, says `who`. `partition` -1: the metadata log."""

    who: str
    partition: int
    offset: int
    digest: str


@dataclass
class Receipt:
    """The deliveries that one consumer or holder got.

    `attached_at`: the offset of its first event. `cut`: it may have missed the last deliveries, because its session was
    closed or the broker crashed."""

    life: int
    attached_at: int
    rows: list[EffectRow] = field(default_factory=list)  # of Deliver and FetchReply
    bodies: list[tuple[int, bytes]] = field(default_factory=list)  # message id, body
    cut: bool = False


@dataclass
class Witness:
    lives: list[Life] = field(default_factory=list)
    publishes: list[Publish] = field(default_factory=list)
    receipts: dict[tuple[int, int, int], Receipt] = field(default_factory=dict)  # by partition, consumer, life
    claims: list[Claim] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # what was done, to see that everything is
    ended: Counter[str] = field(default_factory=Counter)  # how messages left their queues

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def saw(self, partition: int, effects: Sequence[Effect], replaying: bool) -> None:
        rows = [row_of(effect) for effect in effects]
        (self.life.replayed if replaying else self.life.performed)[partition] += rows

    def crash(self, survived: list[int]) -> None:
        """Everything from `survived` on never happened, as far as the history goes."""
        self.life.ended = survived
        self.life.crashed = True
        for receipt in self.receipts.values():
            receipt.cut = receipt.cut or receipt.life == self.life.number
        self.claims = [claim for claim in self.claims if claim.offset <= survived[claim.partition]]
