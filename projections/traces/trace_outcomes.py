"""The outcomes of traced messages: those of HISTORY, and the trace of each publish.

A fold may begin after the publish of a message. Then it is unknown here whether the message has a trace, so its rows
are included; a caller that has read the publish knows.
"""

from collections.abc import Container
from typing import TypeVar

from rewindmq.projections.history.outcome_rows import OutcomeRows
from rewindmq.projections.history.outcomes import Outcomes
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.traces.trace_context import Trace, trace_of
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor

T = TypeVar("T")


class PublishTraces(Container[int]):
    """The traces of publishes from `first` to `end` (exclusive), and the ids of messages that may have one.

    `known_from`: a message with a lower id may have an unknown trace."""

    def __init__(self, first: int, end: int, known_from: int) -> None:
        self.first, self.end, self.known_from = first, end, known_from
        self.of: dict[int, Trace] = {}

    def __contains__(self, message_id: object) -> bool:
        return isinstance(message_id, int) and (message_id in self.of or self.first <= message_id < self._unknown_to)

    @property
    def _unknown_to(self) -> int:
        return min(self.known_from, self.end)


class TracedOutcomes(Outcomes[T]):
    """A `Product`: the outcomes of a range, while `traces` collects the trace of each publish."""

    def __init__(self, rows: OutcomeRows[T], traces: PublishTraces) -> None:
        super().__init__(rows)
        self.traces = traces

    @property
    def run(self) -> None:
        """Return None, because every publish must be seen for its headers (`Product`)."""
        return None

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """Note the trace of a publish, and add the rows of an event's outcomes (`Product`)."""
        if isinstance(event, Published) and self.traces.first <= offset < self.traces.end:
            trace = trace_of(event.properties)
            if trace is not None:
                self.traces.of[offset] = trace
        super().event(offset, timestamp_ms, actor, event, effects)
