"""A fold that makes rows: a product sees each event and its effects, while the machine stands right behind the event.

    rows = fold_events(Outcomes(PlainRows(log.name)), machine, groups_of(log, machine.next_offset), decoder_for(log))

A product that takes runs is told of publishes that were applied together (`Machine.apply`) at once. A record that
cannot be decoded is shown to the product, as every fold skips it.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import RecordGroup, Run, drive
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Checkpointed, Event
from rewindmq.schemas.values import Actor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Product(Protocol[T_co]):
    """Makes rows of a fold. Each range has an instance of its own."""

    @property
    def run(self) -> Run | None:
        """Called when the machine has just applied publishes together; None: the product has to see every event."""

    def begin(self, machine: Machine) -> None:
        """Called before the first event that the product sees; the machine already stands there."""

    def before(self, offset: int, timestamp_ms: int, event: Checkpointed) -> None:
        """Called when the machine is about to apply a broker's claim about an earlier state."""

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """Called when the machine has just applied the event."""

    def undecodable(self, offset: int, why: str) -> None:
        """Called when the machine has just skipped a record that cannot be decoded."""

    def take(self, last: bool) -> Iterator[T_co]:
        """Yield the rows that are ready. Called after each group of records, and with `last` at the end."""


def fold_events(
    product: Product[T],
    machine: Machine,
    groups: Iterable[RecordGroup],
    decoder: Decoder | None = None,
    stripped: bool = False,
) -> Iterator[T]:
    """Show `product` every event with its effects, and yield its rows after each group.

    `stripped`: the records have no bodies (`strip_body`). Then nothing is applied together."""
    product.begin(machine)
    decoder = decoder or Decoder()
    before, after, run, undecodable = {Checkpointed: product.before}, product.event, product.run, product.undecodable
    for group in groups:
        drive(
            machine,
            (group,),
            decoder,
            before=before,
            after=after,
            run=run,
            undecodable=undecodable,
            stripped=stripped,
        )
        yield from product.take(False)
    yield from product.take(True)
