"""The counts of sessions in a log, compared with what a reader counts there who knows nothing of the audit."""

from rewindmq.engine.keeping.location import Location
from rewindmq.projections.replay import events_of
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.schemas.access_events import SessionCounted
from rewindmq.schemas.events import Published


def counts_of(location: Location) -> list[SessionCounted]:
    """Return the counts in the log. AssertionError: one is wrong."""
    log = location.open()
    found = [event for _, _, _, event in events_of(log.metadata) if isinstance(event, SessionCounted)]
    published = {
        number_of(partition.name): [
            (offset, actor.session)
            for offset, _, actor, event in events_of(partition)
            if isinstance(event, Published) and event.origin is None
        ]
        for partition in log.queues
    }
    for each in found:
        for part in each.partitions:
            below = [offset for offset, session in published[part.partition] if session == each.session]
            assert sum(offset < part.below for offset in below) == part.events, each
        gone = each.refused + each.unknown_exchange + each.after_error + each.unfinished + each.grouped
        assert each.received + each.copies == gone + sum(part.events for part in each.partitions), each
    return found
