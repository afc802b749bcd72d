"""Resolves marks: a named moment (`mark:NAME`, projections/marks.py) in place of a time stands for the mark's offsets.

It also plans the range between two moments.
"""

from collections.abc import Iterable, Mapping

from rewindmq.engine.keeping.location import HistoryReader, Location
from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.marks import name_in, positions
from rewindmq.spark_replay.location.log import first_event_ms, require_kept, selected
from rewindmq.spark_replay.location.ranges import OffsetRange, P, resolve


def offsets_of(log: HistoryReader, moment: str | None) -> str | None:
    """Return the offsets of a mark in the form of options ({"queues-0": 12}); None for a moment that is no mark.

    A partition that came after the mark was set has offset 0. Raises NoSuchMark."""
    name = name_in(moment)
    if name is None:
        return None
    later = dict.fromkeys((each.name for each in log.queues), 0)
    return canonical_json(later | positions(log.topology().marks, name))


def time_of(log: HistoryReader, moment: str) -> str:
    """Return the time at which a mark was set, in milliseconds; another moment is returned as it is.

    Raises NoSuchMark."""
    name = name_in(moment)
    if name is None:
        return moment
    topology = log.topology()
    positions(topology.marks, name)
    return str(topology.marked[name][0])


def by_offsets(log: HistoryReader, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of ranges.py, with offsets in the place of marks."""
    found = dict(options)
    for which in ("starting", "ending"):
        offsets = offsets_of(log, found.get(f"{which}Timestamp"))
        if offsets is not None:
            del found[f"{which}Timestamp"]
            found[f"{which}Offsets"] = offsets
    return found


def plan_ranges(location: Location, start: str | None, end: str | None) -> list[OffsetRange]:
    """Return the ranges from one time or mark to another, in whole partitions. Needs no Spark.

    Raises BadRequest, OutsideHistory."""
    log = location.open()
    wanted = {"startingTimestamp": start, "endingTimestamp": end}
    options = {name: value for name, value in wanted.items() if value is not None}
    return resolved(log, selected(log, "queues", None), options)


def resolved(log: HistoryReader, partitions: Iterable[P], options: Mapping[str, str]) -> list[OffsetRange]:
    """Return the range of each of these partitions by options such as startingTimestamp.

    Raises BadRequest, OutsideHistory; BelowFloor, which names the floor, for a time before it."""
    in_log = {each.name: each for each in (log.metadata, *log.queues)}

    def kept(partition: P, time_ms: int) -> None:
        require_kept(log, [in_log[partition.name]], time_ms)

    return resolve(partitions, by_offsets(log, options), first_event_ms(log), kept)
