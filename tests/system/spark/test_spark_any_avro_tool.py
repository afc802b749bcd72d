"""Any Avro tool reads the events of a segment, and of an archived one, with their own fields: as we read them."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.replay import PartitionLog, events_of
from tests.support.archiving import archive_all
from tests.support.avro_tools.tools import records_as_json

pytestmark = pytest.mark.long

NAMES = ("metadata-0", "queues-0", "queues-1")
TYPES = {"string", "long", "int", "boolean", "bytes", "double", "array", "map"}  # how avro-tools names a branch
NOT_STORED = {"body_size"}  # it is the length of the body


def ours(value: Any) -> Any:
    """A value of ours in JSON's types, bytes as text."""
    if is_dataclass(value):
        return {each.name: ours(getattr(value, each.name)) for each in fields(value) if each.name not in NOT_STORED}
    if isinstance(value, tuple | list):
        return [ours(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def theirs(value: Any) -> Any:
    """A value as a tool shows it, in the same types, without the branches of unions: {"long": 7}, {"member0": ...}."""
    if isinstance(value, dict):
        if value and all(name.startswith("member") for name in value):
            return theirs(next((each for each in value.values() if each is not None), None))
        if len(value) == 1 and (next(iter(value)) in TYPES or "." in next(iter(value))):
            return theirs(next(iter(value.values())))
        if list(value) == ["first", "last"]:  # a range of message ids is a tuple with us
            return list(value.values())
        return {name: theirs(each) for name, each in value.items()}
    if isinstance(value, list):
        return [theirs(each) for each in value]
    if isinstance(value, datetime):
        return round(value.replace(tzinfo=UTC).timestamp() * 1_000)
    return value.decode("latin-1") if isinstance(value, bytes | bytearray) else value


def events(log: PartitionLog) -> list[Any]:
    told = [(timestamp_ms, actor, event) for _, timestamp_ms, actor, event in events_of(log)]
    assert not any(actor.reason for _, actor, _ in told)  # it would be in Explained, around the event
    return [[at, {"user": actor.user, "session": actor.session}, ours(event)] for at, actor, event in told]


def shown(records: Iterable[dict[str, Any]]) -> list[Any]:
    return [[theirs(each["timestamp"]), theirs(each["actor"]), theirs(each["event"])] for each in records]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["segments", "archive"])
def test_avro_tools_and_spark_avro_show_the_fields_of_events(
    spark: SparkSession, busy: Path, tmp_path: Path, place: str, name: str
) -> None:
    log: Any = EmbeddedLogReader(busy)
    paths = sorted((busy / "log" / name).glob("[0-9]*.avro"))
    if place == "archive":
        archive_all(busy, str(tmp_path / "archive"))
        log = ArchivedLog(str(tmp_path / "archive"))
        paths = sorted((tmp_path / "archive" / name / "segments").glob("*.avro"))
    [partition] = [each for each in (log.metadata, *log.queues) if each.name == name]
    wanted = events(partition)
    assert len(wanted) > 5
    assert shown(each for path in paths for each in records_as_json(path)) == wanted
    rows = spark.read.format("avro").load([str(path) for path in paths]).collect()
    assert sorted(shown(row.asDict(recursive=True) for row in rows), key=str) == sorted(wanted, key=str)
