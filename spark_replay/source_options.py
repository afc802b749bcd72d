"""What `format("rewindmq")` can be asked: its views, and the options of each.

All options are strings, and Spark hands their names over in lower case. An option that nobody knows, or that says
nothing about the view, would quietly be another question: it is refused, when the table is asked for, in one line.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from projections.snapshots import Snapshots
from spark_replay import columns
from spark_replay.ranges import STRETCH, BadRequest, parse_count, true_or_false

if TYPE_CHECKING:
    import pyarrow as pa

_PLACE = ("path", "data", "view")
_CHANGES = {"changeStartOffset": "startingOffsets", "changeEndOffset": "endingOffsets"}
_FOLD = ("queue", "fromCheckpoint", "snapshots", "minPartitions")
_MOMENT = ("asOfOffset", "asOfTimestamp", *_FOLD)

# view -> its options, besides those that say where the log is
VIEWS: dict[str, tuple[str, ...]] = {
    "events": ("log", "partitions", *STRETCH, "minPartitions", "includeBodies", "includeHeaders"),
    "records": ("log", "partitions", *STRETCH, "minPartitions"),
    "history": ("partitions", *STRETCH, *_CHANGES, *_FOLD),
    "queues": _MOMENT,
    "messages": _MOMENT,
    "partitions": ("log", "partitions", "snapshots"),
}
_TABLES = {
    "records": columns.RECORDS, "history": columns.HISTORY, "queues": columns.QUEUES, "messages": columns.MESSAGES,
    "partitions": columns.PARTITIONS,
}  # fmt: skip
_SPELLED = {
    name.lower(): name
    for names in (_PLACE, ("readChangeFeed",), *VIEWS.values())
    for name in names
}  # fmt: skip


class Asked:
    """The options of one table, checked. BadRequest."""

    def __init__(self, given: Mapping[str, str | None]) -> None:
        unknown = {name.lower() for name in given} - _SPELLED.keys()
        if unknown:
            raise BadRequest(f"{min(unknown)} is no option of rewindmq")
        options = {_SPELLED[name.lower()]: str(value) for name, value in given.items() if value is not None}
        self.view = _view(options)
        _check(self.view, options)
        self.bodies = true_or_false(options, "includeBodies", True)
        self.headers = true_or_false(options, "includeHeaders", False)
        self.least = parse_count(options, "minPartitions", 1)
        self.options = {_CHANGES.get(name, name): text for name, text in options.items()}

    @property
    def path(self) -> str:
        path = self.options.get("path") or self.options.get("data")
        if not path:
            raise BadRequest('option "path": which data directory?')
        return path

    @property
    def snapshots(self) -> Path | None:
        directory = self.options.get("snapshots")
        return None if directory is None else Path(directory).resolve()

    def snapshots_used(self) -> Snapshots:
        """Those, or the ones beside the log."""
        from spark_replay.fold import beside

        used = beside(self.path) if self.snapshots is None else Snapshots(self.snapshots)
        assert used is not None, "beside a data directory there may always be some"
        return used

    @property
    def columns(self) -> "pa.Schema":
        return columns.events(self.bodies, self.headers) if self.view == "events" else _TABLES[self.view]


def _view(options: Mapping[str, str]) -> str:
    feed = true_or_false(options, "readChangeFeed", False)
    as_of = any(name in options for name in ("asOfOffset", "asOfTimestamp"))
    view = options.get("view", "history" if feed else "queues" if as_of else "events")
    if view not in VIEWS:
        raise BadRequest(f"view: {view!r} is none of {', '.join(VIEWS)}")
    if feed and view != "history":
        raise BadRequest(f"readChangeFeed is the view history, not {view}")
    return view


def _check(view: str, options: Mapping[str, str]) -> None:
    for name in options:
        if name in VIEWS[view] or name in _PLACE or name == "readChangeFeed":
            continue
        if view == "history" and name in VIEWS["queues"]:
            raise BadRequest(f"{name} is about a moment: view queues or messages")
        if view in ("queues", "messages") and name in VIEWS["history"]:
            raise BadRequest(f"{name} is about a stretch, the view {view} about a moment: asOfTimestamp")
        raise BadRequest(f"{name} is no option of the view {view}")
    for name, other in _CHANGES.items():
        if name in options and other in options:
            raise BadRequest(f"{name} is {other}: say one")
