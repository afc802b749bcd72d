"""Adds to an error who trimmed the history, when, and why, so that a reader knows why it begins there."""

from collections.abc import Mapping

from rewindmq.projections.rewind import BelowFloor, format_time
from rewindmq.projections.store.bases import Base
from rewindmq.projections.topology.about_history import Floor

KEEP_HISTORY = "--keep-history"  # begins the reason of a trim that the broker made by itself


def explained(error: BelowFloor, floors: Mapping[str, Floor]) -> BelowFloor:
    """Return the error with the metadata log's account of the partition's floor (`topology.history.floors`)."""
    floor = floors.get(error.partition)
    if floor is None or floor.event.offset > error.start:
        return error
    return BelowFloor(error.partition, error.start, f"{error}; {in_words(floor)}")


def in_words(floor: Floor) -> str:
    """Describe the floor for people."""
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
    """Return why a base is not the one from the partition's trim; None if it is, or if no trim is known."""
    floor = floors.get(base.partition)
    if floor is None or floor.event.offset != base.offset:
        return None
    event = floor.event
    if (base.chain, base.digest) == (event.chain, event.digest):
        return None
    said = f"the metadata log says at offset {floor.at} that the history was trimmed with digest {event.digest}"
    return f"{base.path}: another base was put there: its state has the digest {base.digest}, and {said}"
