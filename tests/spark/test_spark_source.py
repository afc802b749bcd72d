"""spark.read.format("rewindmq"): rows, ranges and options (BEHAVIOURS section 16)."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from histories import START_MS, Recorder
from pyspark.sql.datasource import CaseInsensitiveDict

from engine.log.reader import EmbeddedLogReader
from projections.rewind import OutsideHistory, RewindError
from schemas.codec import Decoder
from schemas.events import Published
from spark_replay.failures import cause_of
from spark_replay.history import history
from spark_replay.history_log import first_event_ms, open_log
from spark_replay.ranges import BadRequest, Range, resolve
from spark_replay.source import RewindSource
from spark_replay.state import state_at


def read(spark, data, **options):
    reader = spark.read.format("rewindmq").option("path", str(data))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_rows_are_the_events_of_the_log_in_order(spark, busy: Path) -> None:
    rows = read(spark, busy, log="all").collect()
    decode = Decoder().decode
    expected = []
    for partition in EmbeddedLogReader(busy).partitions:
        for block in partition.read():
            for offset, record in enumerate(block.records, block.first_offset):
                timestamp_ms, actor, event = decode(record)
                body = event.body if isinstance(event, Published) else None
                expected.append((partition.name, offset, timestamp_ms, actor.user, type(event).__name__, body))
    found = [
        (r.partition, r.offset, round(r.timestamp.timestamp() * 1000), r.user, r.event, r.body and bytes(r.body))
        for r in rows
    ]
    assert [(*row[:5], row[5] or None) for row in found] == [(*row[:5], row[5] or None) for row in expected]


def test_a_partition_of_the_log_is_a_partition_of_spark(spark, busy: Path) -> None:
    frame = read(spark, busy, view="records")
    assert frame.rdd.getNumPartitions() == 2
    assert frame.columns == ["partition", "offset", "record"]


def test_columns_of_a_publish(spark, tmp_path: Path) -> None:
    history = Recorder(tmp_path, partitions=1)
    history.declare("orders", {"x-max-length": 5})
    offset = history.publish("orders", b"\xff\x00", expiration_ms=7)
    history.close()
    row = read(spark, tmp_path).where(f"offset = {offset}").collect()[0]
    assert (row.event, row.vhost, row.queues, row.routing_key) == ("Published", "/", ["orders"], "orders")
    assert (row.size, row.expiration_ms, row.persistent, bytes(row.body)) == (2, 7, True, b"\xff\x00")
    declared = read(spark, tmp_path, includeBodies="false").where("event = 'QueueDeclared'").collect()[0]
    assert declared.queue == "orders"
    assert '"name":"x-max-length"' in declared.detail
    assert "body" not in declared.asDict()


def test_password_hashes_stay_out(spark, tmp_path: Path) -> None:
    from schemas.events import UserSet

    history = Recorder(tmp_path, partitions=1)
    history.metadata(UserSet("eve", "$argon2id$secret", ("administrator",)))
    history.close()
    row = read(spark, tmp_path, log="metadata").where("event = 'UserSet'").collect()[0]
    assert "administrator" in row.detail
    assert "secret" not in row.detail


def test_starting_and_ending_offsets(spark, busy: Path) -> None:
    frame = read(spark, busy, startingOffsets='{"queues-0": 10, "queues-1": -2}', endingOffsets='{"queues-0": 13}')
    zero = [row.offset for row in frame.where("partition = 'queues-0'").collect()]
    assert zero == [10, 11, 12]
    end = EmbeddedLogReader(busy).queues[1].next_offset
    assert frame.where("partition = 'queues-1'").count() == end


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"endingTimestamp": "2001-01-01T00:00:00Z"}, "lies before the history"),
        ({"endingTimestamp": "2999-01-01T00:00:00Z"}, "lies in the future"),
        ({"endingTimestamp": "noon"}, "'noon' is not a time"),
        ({"startingTimestamp": "2999-01-01T00:00:00Z"}, "nothing was logged at or after"),
        ({"startingOffsets": '{"queues-9": 1}'}, "there is no partition queues-9"),
        ({"startingOffsets": "12"}, "does not say of which partition"),
        ({"endingOffsets": '{"queues-0": 1000000}'}, "queues-0 has offsets 0 to"),
        ({"endingOffsets": "{"}, "is not JSON"),
        ({"startingOffsetsByTimestampStrategy": "maybe"}, "neither error nor latest"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: 'no' is neither true nor false"),
        ({"endingOffsets": '{"queues-0": 1000000}', "failOnDataLoss": "TRUE"}, "queues-0 has offsets 0 to"),
        ({"startingOffsets": "Earliest"}, "is not JSON"),
    ],
)
def test_bad_ranges_are_refused(busy: Path, options: dict[str, str], error: str) -> None:
    log = open_log(str(busy))
    with pytest.raises(RewindError, match=re.escape(error)):
        resolve(log.queues, options, first_event_ms(log))


@dataclass(frozen=True)
class Shortened:
    """A log whose beginning is gone, as ranges.py sees it."""

    name: str = "queues-0"
    start_offset: int = 10
    next_offset: int = 20

    def offset_at(self, timestamp_ms: int) -> int:
        return 15


def test_what_is_lost_of_a_stretch_is_an_error_or_left_out() -> None:
    for asked in ({"startingOffsets": "5"}, {"startingOffsets": "21"}, {"endingOffsets": "9"}, {"endingOffsets": "21"}):
        with pytest.raises(OutsideHistory, match="queues-0 has offsets 10 to 20, not"):
            resolve([Shortened()], asked, 0)
    for start, end, there in ((5, 18, (10, 18)), (12, 99, (12, 20)), (5, 99, (10, 20)), (0, 5, (10, 10)),
                              (30, 40, (20, 20)), (12, 18, (12, 18))):  # fmt: skip
        options = {"startingOffsets": str(start), "endingOffsets": str(end), "failOnDataLoss": "false"}
        assert resolve([Shortened()], options, 0) == [Range("queues-0", *there)]


def test_earliest_and_latest_are_of_all_partitions(busy: Path) -> None:
    log = open_log(str(busy))
    ends = [Range(each.name, each.next_offset, each.next_offset) for each in log.queues]
    assert resolve(log.queues, {"startingOffsets": "latest"}, 0) == ends
    assert resolve(log.queues, {"startingOffsets": "earliest", "endingOffsets": "latest"}, 0) == (
        [Range(each.name, 0, each.next_offset) for each in log.queues]
    )


def test_a_bad_range_reaches_whoever_reads_with_spark(spark, busy: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own wrapping
        read(spark, busy, endingTimestamp="2001-01-01T00:00:00Z").count()
    name, line = cause_of(caught.value)
    assert name == "OutsideHistory"
    assert "lies before the history" in line


def test_times_are_resolved_to_the_events_up_to_them(busy: Path) -> None:
    log = open_log(str(busy))
    ranges = resolve(log.queues, {"endingTimestamp": str(START_MS + 500)}, first_event_ms(log))
    decode = Decoder()
    for stretch, partition in zip(ranges, log.queues, strict=True):
        times = [decode.timestamp_ms(r) for block in partition.read() for r in block.records]
        assert stretch.end == sum(time <= START_MS + 500 for time in times)
        assert stretch == Range(partition.name, 0, stretch.end)
    late = {"startingTimestamp": "2030-01-01T00:00:00Z", "startingOffsetsByTimestampStrategy": "latest"}
    assert all(r.start == r.end for r in resolve(log.queues, late, first_event_ms(log)))


def test_a_bare_offset_means_the_only_partition(tmp_path: Path) -> None:
    history = Recorder(tmp_path, partitions=1)
    history.declare("orders")
    history.close()
    assert resolve(open_log(str(tmp_path)).queues, {"endingOffsets": "1"}, 0) == [Range("queues-0", 0, 1)]


def test_views_are_the_functions(spark, busy: Path) -> None:
    offsets = {"startingOffsets": '{"queues-0": 40}', "endingOffsets": '{"queues-1": 50}'}
    changes = {"changeStartOffset": offsets["startingOffsets"], "changeEndOffset": offsets["endingOffsets"]}
    wanted = history(spark, str(busy), offsets, "short").collect()
    assert wanted
    assert read(spark, busy, readChangeFeed="true", queue="short", **changes).collect() == wanted
    assert read(spark, busy, view="history", queue="short", **offsets).collect() == wanted
    beyond = {**offsets, "endingOffsets": '{"queues-0": 1000000, "queues-1": 50}', "failOnDataLoss": "false"}
    assert read(spark, busy, view="history", queue="short", **beyond).collect() == wanted
    for when in ({"offsets": '{"queues-1": 200}'}, {"time": str(START_MS + 7_000)}):
        state = state_at(spark, str(busy), **when)
        option = {"asOfOffset": when["offsets"]} if "offsets" in when else {"asOfTimestamp": when["time"]}
        assert read(spark, busy, **option).collect() == state.queues.collect()
        assert read(spark, busy, view="messages", **option).collect() == state.messages.collect()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"view": "messages", "startingOffsets": "{}"}, "startingOffsets is about a stretch"),
        ({"view": "queues", "partitions": "queues-0"}, "partitions is about a stretch"),
        ({"view": "events", "asOfOffset": "{}"}, "asOfOffset is no option of the view events"),
        ({"view": "messages", "failOnDataLoss": "false"}, "failOnDataLoss is about a stretch"),
        ({"view": "history", "asOfTimestamp": "0"}, "asOfTimestamp is about a moment"),
        ({"view": "queues", "readChangeFeed": "true"}, "readChangeFeed is the view history"),
        ({"readChangeFeed": "yes"}, "neither true nor false"),
        ({"readChangeFeed": "true", "changeEndOffset": "{}", "endingOffsets": "{}"}, "say one"),
        ({"changeStartOffset": "{}"}, "changeStartOffset is no option of the view events"),
        ({"startingTimestmp": "2025-11-21T03:00:00Z"}, "startingtimestmp is no option of rewindmq"),
        ({"view": "x"}, "none of events, records, history, queues, messages"),
    ],
)
def test_options_that_say_nothing_about_a_view_are_refused(options: dict[str, str], error: str) -> None:
    source = RewindSource(CaseInsensitiveDict({"path": "x", **options}))
    with pytest.raises(BadRequest, match=error):
        source.reader(source.schema())


def test_times_by_partition_are_those_of_all(busy: Path) -> None:
    log = open_log(str(busy))
    first = first_event_ms(log)
    begin, end = str(START_MS + 300), str(START_MS + 500)
    of_all = resolve(log.queues, {"startingTimestamp": begin, "endingTimestamp": end}, first)
    each = {name: {partition.name: int(ms) for partition in log.queues} for name, ms in (("s", begin), ("e", end))}
    names = {"s": "startingOffsetsByTimestamp", "e": "endingOffsetsByTimestamp"}
    by_partition = {names[which]: json.dumps(times) for which, times in each.items()}
    assert resolve(log.queues, by_partition, first) == of_all
    one = {"endingOffsetsByTimestamp": json.dumps({"queues-0": int(end)})}
    found = resolve(log.queues, one, first)
    assert found[0].end == of_all[0].end
    assert found[1].end == log.queues[1].next_offset
