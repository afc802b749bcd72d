"""Checks the options of `format("rewindmq")`: its views, and the options of each.

All options are strings, and Spark passes their names in lower case. An unknown option, or one that does not belong to
the view, would quietly give another result: it is refused when the table is asked for, in one line. An option that
begins with `kafka.` is a setting of Kafka's client and may be a secret: no line shows its value.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.projections.store.snapshots import Snapshots, SnapshotSet
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.location.ranges import RANGE_OPTIONS, BadRequest, parse_count, true_or_false

if TYPE_CHECKING:
    import pyarrow as pa

    from rewindmq.engine.keeping.location import Location

_BOOTSTRAP = "kafka.bootstrap.servers"
_LOCATIONS = ("path", "data", "archive", _BOOTSTRAP)
_LOCATION = ("path", "data", "archive", "kafkaPrefix", "view")
_CHANGES = {"changeStartOffset": "startingOffsets", "changeEndOffset": "endingOffsets"}
_FOLD = ("queue", "fromCheckpoint", "snapshots", "minPartitions")
_MOMENT = ("asOfOffset", "asOfTimestamp", *_FOLD)

# view -> its options, besides those that give the location of the log
VIEWS: dict[str, tuple[str, ...]] = {
    "events": ("log", "partitions", *RANGE_OPTIONS, "minPartitions", "includeBodies", "includeHeaders"),
    "records": ("log", "partitions", *RANGE_OPTIONS, "minPartitions"),
    "history": ("partitions", *RANGE_OPTIONS, *_CHANGES, *_FOLD, "columns"),
    "queues": _MOMENT,
    "messages": _MOMENT,
    "partitions": ("log", "partitions", "snapshots"),
}
_TABLES = {
    "records": columns.RECORDS,
    "history": columns.HISTORY,
    "queues": columns.QUEUES,
    "messages": columns.MESSAGES,
    "partitions": columns.PARTITIONS,
}
_SPELLED = {name.lower(): name for names in (_LOCATION, ("readChangeFeed",), *VIEWS.values()) for name in names}


class TableOptions:
    """The options of one table, checked.

    Raises BadRequest."""

    def __init__(self, given: Mapping[str, str | None]) -> None:
        texts = {name.lower(): str(value) for name, value in given.items() if value is not None}
        self.of_catalog: dict[str, str] = {}  # the options of a table that a catalog is to keep
        if "provider" in texts:
            texts = self.of_catalog = _asked(texts)
        of_kafka = {name: value for name, value in texts.items() if name.startswith("kafka.")}
        unknown = texts.keys() - of_kafka.keys() - _SPELLED.keys()
        if unknown:
            raise BadRequest(f"unknown option {min(unknown)} of rewindmq")
        options = {_SPELLED[name]: value for name, value in texts.items() if name not in of_kafka}
        self.view = _view(options)
        _check(self.view, options)
        self.location = _location(options, of_kafka)
        self.bodies = true_or_false(options, "includeBodies", True)
        self.headers = true_or_false(options, "includeHeaders", False)
        self.strict = true_or_false(options, "failOnDataLoss", True)
        self.least = parse_count(options, "minPartitions", 1)
        self.options = {_CHANGES.get(name, name): text for name, text in options.items()}

    @property
    def snapshots(self) -> Path | None:
        """The directory that the option `snapshots` names, or None."""
        directory = self.options.get("snapshots")
        return None if directory is None else Path(directory).resolve()

    def snapshots_used(self) -> SnapshotSet | None:
        """Return the snapshots that the option names, or those beside the log; a Kafka has none beside it."""
        from rewindmq.spark_replay.fold import broker_snapshots

        return broker_snapshots(self.location) if self.snapshots is None else Snapshots(self.snapshots)

    @property
    def only(self) -> list[str] | None:
        """The names in the option `columns`; None: all columns."""
        names = self.options.get("columns")
        return None if names is None else [name.strip() for name in names.split(",")]

    @property
    def columns(self) -> "pa.Schema":
        """The Arrow schema of the view."""
        from rewindmq.spark_replay.location.log import is_of_kafka

        if self.view == "records" and is_of_kafka(self.location):
            return columns.KAFKA_RECORDS
        if self.view == "history":
            from rewindmq.spark_replay.history.outcome_rows import history_columns

            return history_columns(self.only)
        return columns.events(self.bodies, self.headers) if self.view == "events" else _TABLES[self.view]


def _asked(texts: dict[str, str]) -> dict[str, str]:
    """Return the options that somebody gave to a table of Spark's catalog.

    It also gives them as `option.NAME`, gives the path as a URL, and adds properties: the format (`provider`), the
    owner, TBLPROPERTIES. Raises BadRequest for a setting that may be a secret: files that are made of the table would
    show it."""
    asked = {name: value for name, value in texts.items() if name == "path" or f"option.{name}" in texts}
    if "path" in asked:
        asked["path"] = asked["path"].removeprefix("file:")
    secret = next((name for name in asked if name.startswith("kafka.") and name != _BOOTSTRAP), None)
    if secret is not None:
        raise BadRequest(f"a table in a catalog shows its options: give {secret} to a temporary view")
    return asked


def _location(options: Mapping[str, str], of_kafka: Mapping[str, str]) -> "Location":
    """Return the location of the history.

    `of_kafka`: the options that begin with `kafka.`. Raises BadRequest when the options do not name exactly one
    location."""
    from rewindmq.engine.keeping.location import InDirectory, InKafka
    from rewindmq.spark_replay.location.kafka_settings import for_librdkafka
    from rewindmq.spark_replay.location.log import in_archive

    found = [(name, value) for name, value in {**options, **of_kafka}.items() if name in _LOCATIONS and value.strip()]
    about_kafka = sorted({*of_kafka, *(options.keys() & {"kafkaPrefix"})} - {_BOOTSTRAP})
    if about_kafka and _BOOTSTRAP not in dict(found):
        raise BadRequest(f"{about_kafka[0]} is for a history in Kafka: also give {_BOOTSTRAP}")
    if not found:
        raise BadRequest(f'where is the history: option "path", a data directory, "archive", or "{_BOOTSTRAP}"?')
    archive = None
    if {name for name, _ in found} == {"archive", _BOOTSTRAP}:
        archive = in_archive(dict(found)["archive"]).url
        found = [(name, where) for name, where in found if name == _BOOTSTRAP]
    if len(found) > 1:
        raise BadRequest(f"where is the history: {' or '.join(name for name, _ in found)}? Give one of them")
    [(kind, where)] = found
    if kind == "archive":
        return in_archive(where)
    if kind != _BOOTSTRAP:
        return InDirectory(Path(where))
    if "fromCheckpoint" in options and "snapshots" not in options and not archive:
        raise BadRequest(
            "fromCheckpoint: a Kafka has no snapshots beside it; name a directory with the option snapshots"
        )
    settings = for_librdkafka({name: value for name, value in of_kafka.items() if name != _BOOTSTRAP})
    return InKafka(where, options.get("kafkaPrefix", "rewindmq"), settings, archive)


def _view(options: Mapping[str, str]) -> str:
    feed = true_or_false(options, "readChangeFeed", False)
    as_of = any(name in options for name in ("asOfOffset", "asOfTimestamp"))
    view = options.get("view", "history" if feed else "queues" if as_of else "events")
    if view not in VIEWS:
        raise BadRequest(f"view: {view!r} is not one of {', '.join(VIEWS)}")
    if feed and view != "history":
        raise BadRequest(f"readChangeFeed means the view history, not {view}")
    return view


def _check(view: str, options: Mapping[str, str]) -> None:
    for name in options:
        if name in VIEWS[view] or name in _LOCATION or name == "readChangeFeed":
            continue
        if view == "history" and name in VIEWS["queues"]:
            raise BadRequest(f"{name} is for a moment: use the view queues or messages")
        if view in ("queues", "messages") and name in VIEWS["history"]:
            raise BadRequest(
                f"{name} is for a range of offsets, but the view {view} is for a moment: use asOfTimestamp"
            )
        raise BadRequest(f"the view {view} has no option {name}")
    for name, other in _CHANGES.items():
        if name in options and other in options:
            raise BadRequest(f"{name} is another name of {other}: give one of them")
