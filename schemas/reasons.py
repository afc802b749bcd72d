"""The reason that somebody gave for an event."""

from typing import Final

from rewindmq.schemas.events import Event
from rewindmq.schemas.metadata_events import HistoryTrimmed, SubjectErased
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused
from rewindmq.schemas.values import Actor

# Events of schema 1 that have a field for it: their actors have no reason.
WITH_A_REASON: Final = (HistoryTrimmed, SubjectErased, MessageRemoved, QueuePaused)


def why(actor: Actor, event: Event) -> str:
    """Return the reason that an event's actor gave; "" if none: from the event's own field, or from the actor."""
    return event.reason if isinstance(event, WITH_A_REASON) else actor.reason
