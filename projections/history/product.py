"""A fold that makes rows: a product sees each event and its effects, while the machine is right after the event.

    rows = fold_events(Outcomes(PlainRows(log.name)), machine, groups_of(log, machine.next_offset), decoder_for(log))

A product that takes runs receives publishes that were applied together (`Machine.apply`) at once. A record that cannot
be decoded is shown to the product, because every fold skips it.
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
    """A maker of rows from a fold. Each range has its own instance."""

    @property
    def run(self) -> Run | None:
        """Return the receiver of publishes that were applied together; None if the product must see every event."""

    def begin(self, machine: Machine) -> None:
        """Prepare for the first event; the machine is already there."""

    def before(self, offset: int, timestamp_ms: int, event: Checkpointed) -> None:
        """See a broker's claim about an earlier state, which the machine is about to apply."""

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """See an event that the machine has just applied."""

    def undecodable(self, offset: int, why: str) -> None:
        """See a record that the machine has just skipped, because it cannot be decoded."""

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
