"""Says in an error why history begins where it does: by whom it was trimmed, when, and for which reason."""

from collections.abc import Mapping

from rewindmq.projections.rewind import BelowFloor, format_time
from rewindmq.projections.topology.about_history import Floor


def explained(error: BelowFloor, floors: Mapping[str, Floor]) -> BelowFloor:
    """The error, with what the metadata log says about the floor of the partition (`topology.history.floors`)."""
    floor = floors.get(error.partition)
    if floor is None or floor.event.offset > error.start:
        return error
    return BelowFloor(error.partition, error.start, f"{error}; {in_words(floor)}")


def in_words(floor: Floor) -> str:
    """The floor, for people."""
    event = floor.event
    who = f"user '{floor.user}'" if floor.user else "an operator at the command line"
    why = f": {event.reason}" if event.reason else ""
    return (
        f"{who} trimmed the events below offset {event.offset}, of {format_time(event.until_ms)} and before, at"
        f" {format_time(floor.time_ms)}{why}"
    )
