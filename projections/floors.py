"""Says in an error why history begins where it does: by whom it was trimmed, when, and for which reason."""

from collections.abc import Mapping

from rewindmq.projections.rewind import BelowFloor, format_time
from rewindmq.projections.store.bases import Base
from rewindmq.projections.topology.about_history import Floor

KEEP_HISTORY = "--keep-history"  # the reason of a trim begins so if the broker made it by itself


def explained(error: BelowFloor, floors: Mapping[str, Floor]) -> BelowFloor:
    """The error, with what the metadata log says about the floor of the partition (`topology.history.floors`)."""
    floor = floors.get(error.partition)
    if floor is None or floor.event.offset > error.start:
        return error
    return BelowFloor(error.partition, error.start, f"{error}; {in_words(floor)}")


def in_words(floor: Floor) -> str:
    """Return the floor, for people."""
    event = floor.event
    who = "the broker" if event.reason.startswith(KEEP_HISTORY) else "an operator at the command line"
    if floor.user:
        who = f"user '{floor.user}'"
    why = f": {event.reason}" if event.reason else ""
    return (
        f"{who} trimmed the events below offset {event.offset}, of {format_time(event.until_ms)} and before, at"
        f" {format_time(floor.time_ms)}{why}"
    )


def base_differs(base: Base, floors: Mapping[str, Floor]) -> str | None:
    """Why a base is not the one with which the partition was trimmed; None if it is, or nothing is known of it."""
    floor = floors.get(base.partition)
    if floor is None or floor.event.offset != base.offset:
        return None
    event = floor.event
    if (base.chain, base.digest) == (event.chain, event.digest):
        return None
    said = f"the metadata log says at offset {floor.at} that the history was trimmed with digest {event.digest}"
    return f"{base.path}: another base was put there: its state has the digest {base.digest}, and {said}"
