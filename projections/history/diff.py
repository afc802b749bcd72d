"""The changes in queues between two moments, as rows of HISTORY that add a message (1) or remove one (-1).

For each queue the sum of the changes is its length at the end minus its length at the beginning. A change at the end
that is caused by time alone has no event.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rewindmq.projections.history.outcomes import Outcomes
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import RecordGroup
from rewindmq.schemas.codec import Decoder

T = TypeVar("T")


def fold_moves(
    product: Outcomes[T],
    machine: Machine,
    groups: Iterable[RecordGroup],
    decoder: Decoder,
    end: int,
    start_ms: int | None,
    end_ms: int | None,
) -> Iterator[T]:
    """Yield the rows of a partition up to offset `end`. The machine is at the first moment's offset.

    `start_ms`, `end_ms`: the times of the moments; None: the clock is where the last event left it."""
    if start_ms is not None:
        machine.advance(start_ms, [])
    yield from fold_events(product, machine, groups, decoder)
    if end_ms is not None:
        product.time_passes(end, end_ms)
        yield from product.take(True)
