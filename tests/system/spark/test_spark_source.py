"""spark.read.format("rewindmq"): rows, ranges and options (docs/behaviours/interfaces.md#spark)."""

import json
import re
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from pamqp.commands import Basic
from pamqp.common import FieldTable
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.rewind import OutsideHistory, RewindError
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Route
from rewindmq.spark_replay.commands.failures import cause_of
from rewindmq.spark_replay.history.history import history, history_of
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.log import first_event_ms
from rewindmq.spark_replay.location.ranges import BACKWARDS, BadRequest, OffsetRange, divide, resolve
from tests.support.spark.histories import ANN, START_MS, Recorder, When, plain_fold
from tests.support.spark.source import read, source_with


def test_rows_are_the_events_of_the_log_in_order(spark: SparkSession, busy: Path) -> None:
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


def test_a_partition_of_the_log_is_a_partition_of_spark(spark: SparkSession, busy: Path) -> None:
    frame = read(spark, busy, view="records")
    assert frame.rdd.getNumPartitions() == 2
    assert frame.columns == ["partition", "offset", "record"]


def test_columns_of_a_publish(spark: SparkSession, tmp_path: Path) -> None:
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


def test_password_hashes_stay_out(spark: SparkSession, tmp_path: Path) -> None:
    from rewindmq.schemas.metadata_events import UserSet

    history = Recorder(tmp_path, partitions=1)
    history.metadata(UserSet("eve", "$argon2id$secret", ("administrator",)))
    history.close()
    row = read(spark, tmp_path, log="metadata").where("event = 'UserSet'").collect()[0]
    assert "administrator" in row.detail
    assert "secret" not in row.detail


def test_starting_and_ending_offsets(spark: SparkSession, busy: Path) -> None:
    frame = read(spark, busy, startingOffsets='{"queues-0": 10, "queues-1": -2}', endingOffsets='{"queues-0": 13}')
    zero = [row.offset for row in frame.where("partition = 'queues-0'").collect()]
    assert zero == [10, 11, 12]
    end = EmbeddedLogReader(busy).queues[1].next_offset
    assert frame.where("partition = 'queues-1'").count() == end


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"endingTimestamp": "2001-01-01T00:00:00Z"}, "is before the history"),
        ({"endingTimestamp": "2999-01-01T00:00:00Z"}, "lies in the future"),
        ({"endingTimestamp": "noon"}, "'noon' is not a time"),
        ({"startingTimestamp": "2999-01-01T00:00:00Z"}, "nothing was logged at or after"),
        ({"startingTimestamp": "2031-01-01T00:00:00Z", "endingTimestamp": "2030-01-01T00:00:00Z"}, BACKWARDS),
        ({"startingOffsetsByTimestamp": '{"queues-0": 7}', "endingTimestamp": "6"}, BACKWARDS),
        ({"startingOffsets": '{"queues-0": 9}', "endingOffsets": '{"queues-0": 8}'}, BACKWARDS),
        ({"startingOffsets": '{"queues-0": 9}', "endingTimestamp": str(START_MS)}, BACKWARDS),
        ({"startingOffsets": '{"queues-9": 1}'}, "there is no partition queues-9"),
        ({"startingOffsets": "12"}, "names no partition"),
        ({"endingOffsets": '{"queues-0": 1000000}'}, "queues-0 has offsets 0 to"),
        ({"endingOffsets": "{"}, "is not JSON"),
        ({"startingOffsetsByTimestampStrategy": "maybe"}, "neither error nor latest"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: 'no' is neither true nor false"),
        ({"endingOffsets": '{"queues-0": 1000000}', "failOnDataLoss": "TRUE"}, "queues-0 has offsets 0 to"),
        ({"startingOffsets": "Earliest"}, "is not JSON"),
    ],
)
def test_bad_ranges_are_refused(busy: Path, options: dict[str, str], error: str) -> None:
    log = InDirectory(busy).open()
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
    for start, end, there in (
        (5, 18, (10, 18)),
        (12, 99, (12, 20)),
        (5, 99, (10, 20)),
        (0, 5, (10, 10)),
        (30, 40, (20, 20)),
        (12, 18, (12, 18)),
    ):
        options = {"startingOffsets": str(start), "endingOffsets": str(end), "failOnDataLoss": "false"}
        assert resolve([Shortened()], options, 0) == [OffsetRange("queues-0", *there)]


def test_earliest_and_latest_are_of_all_partitions(busy: Path) -> None:
    log = InDirectory(busy).open()
    ends = [OffsetRange(each.name, each.next_offset, each.next_offset) for each in log.queues]
    assert resolve(log.queues, {"startingOffsets": "latest"}, 0) == ends
    assert resolve(log.queues, {"startingOffsets": "earliest", "endingOffsets": "latest"}, 0) == (
        [OffsetRange(each.name, 0, each.next_offset) for each in log.queues]
    )


def test_a_bad_range_reaches_whoever_reads_with_spark(spark: SparkSession, busy: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own wrapping
        read(spark, busy, endingTimestamp="2001-01-01T00:00:00Z").count()
    name, line = cause_of(caught.value)
    assert name == "OutsideHistory"
    assert "is before the history" in line


def test_times_are_resolved_to_the_events_up_to_them(busy: Path) -> None:
    log = InDirectory(busy).open()
    ranges = resolve(log.queues, {"endingTimestamp": str(START_MS + 500)}, first_event_ms(log))
    decode = Decoder()
    for stretch, partition in zip(ranges, log.queues, strict=True):
        times = [decode.timestamp_ms(r) for block in partition.read() for r in block.records]
        assert stretch.end == sum(time <= START_MS + 500 for time in times)
        assert stretch == OffsetRange(partition.name, 0, stretch.end)
    late = {"startingTimestamp": "2030-01-01T00:00:00Z", "startingOffsetsByTimestampStrategy": "latest"}
    assert all(r.start == r.end for r in resolve(log.queues, late, first_event_ms(log)))


def test_a_stretch_in_which_nothing_happened_is_empty(tmp_path: Path) -> None:
    history = Recorder(tmp_path, partitions=1)
    history.declare("orders")
    history.wait(1_000)
    history.publish("orders", b"x")
    history.close()
    log = InDirectory(tmp_path).open()
    between = {"startingTimestamp": str(START_MS + 200), "endingTimestamp": str(START_MS + 800)}
    [stretch] = resolve(log.queues, between, START_MS)
    assert stretch.start == stretch.end == log.queues[0].next_offset - 1


def test_a_bare_offset_means_the_only_partition(tmp_path: Path) -> None:
    history = Recorder(tmp_path, partitions=1)
    history.declare("orders")
    history.close()
    assert resolve(InDirectory(tmp_path).open().queues, {"endingOffsets": "1"}, 0) == [OffsetRange("queues-0", 0, 1)]


def test_a_stretch_is_cut_where_it_is_longest() -> None:
    a, b, empty = OffsetRange("a", 0, 90), OffsetRange("b", 100, 130), OffsetRange("c", 7, 7)
    assert divide([a, b, empty], 1) == [a, b, empty]
    assert divide([a, b, empty], 5) == [
        OffsetRange("a", 0, 30),
        OffsetRange("a", 30, 60),
        OffsetRange("a", 60, 90),
        b,
        empty,
    ]
    assert divide([OffsetRange("a", 0, 10)], 4) == [
        OffsetRange("a", m, n) for m, n in ((0, 2), (2, 5), (5, 7), (7, 10))
    ]
    for least in range(1, 200):
        pieces = divide([a, b, empty], least)
        assert len(pieces) == min(max(least, 3), 121)  # an event each, and the empty one
        for whole in (a, b, empty):
            of = [piece for piece in pieces if piece.partition == whole.partition]
            assert (of[0].start, of[-1].end) == (whole.start, whole.end)
            assert all(one.end == other.start for one, other in pairwise(of))
            assert max(p.end - p.start for p in of) - min(p.end - p.start for p in of) <= 1


@pytest.mark.long
def test_more_partitions_of_spark_have_the_same_rows_in_the_same_order(spark: SparkSession, busy: Path) -> None:
    for view in ("events", "records"):
        whole, cut = (
            read(spark, busy, view=view, minPartitions=least, endingOffsets='{"queues-1": 70}') for least in ("1", "7")
        )
        assert (whole.rdd.getNumPartitions(), cut.rdd.getNumPartitions()) == (2, 7)
        assert cut.collect() == whole.collect()


def test_a_frame_that_was_cut_is_not_folded(spark: SparkSession, busy: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own wrapping
        history_of(read(spark, busy, view="records", minPartitions="4")).count()
    name, line = cause_of(caught.value)
    assert name == "BadRequest"
    assert "begins with the beginning of a partition" in line


def test_headers_are_decoded_when_they_are_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    sent: FieldTable = {"trace": "ä1", "raw": bytearray(b"\xff"), "n": 7, "deep": {"a": [1, True]}, "none": None}
    history = Recorder(tmp_path, partitions=1)
    history.declare("orders")
    plain = history.publish("orders", b"")
    route = Route("/", "", "orders", ("orders",))
    properties = Basic.Properties(headers=sent, delivery_mode=2).marshal()
    correlation_id, nanoseconds = b"\x01\xf0", (1_700_000_000 * 10**9).to_bytes(8, "big")
    table = b"\x01\xffV" + b"\x02atT" + nanoseconds + b"\x01nS\x00\x00\x00\x01y"
    odd = b"\x24\x40" + len(table).to_bytes(4, "big") + table + correlation_id + nanoseconds
    for content in (properties, properties[:-3], odd):
        history.append(
            0,
            ANN,
            Published(route, content, persistent=True, body=b"", body_size=0),
        )
    history.close()
    frame = read(spark, tmp_path, includeHeaders="true").where("event = 'Published'").orderBy("offset")
    without, headers, broken, strange = (row.headers for row in frame.collect())
    assert {h.key: bytes(h.value) for h in headers} == {
        "trace": "ä1".encode(),
        "raw": b"\xff",
        "n": b"7",
        "deep": b'{"a": [1, true]}',
        "none": b"null",
    }
    assert (without, broken) == (None, None)
    assert {h.key: bytes(h.value) for h in strange} == {
        "/w==": b"null",
        "at": b"%d" % (1_700_000_000 * 10**9),
        "n": b"y",
    }
    assert frame.where("cast(headers[0].value as string) is not null").count() == 2
    assert "headers" not in read(spark, tmp_path).columns
    assert frame.where("headers is null").collect()[0].offset == plain


def test_what_there_is_of_each_partition(spark: SparkSession, busy: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(busy, data)
    for at in (50, 120):
        Snapshots(data / "snapshots").take(plain_fold(data, 1, at))
    beyond = plain_fold(data, 1, 60)
    beyond.next_offset = 1_000_000
    Snapshots(data / "snapshots").take(beyond)
    rows = read(spark, data, view="partitions", log="all").collect()
    for row, partition in zip(rows, EmbeddedLogReader(data).partitions, strict=True):
        times = [Decoder().timestamp_ms(r) for block in partition.read() for r in block.records]
        assert (row.partition, row.start_offset, row.end_offset) == (partition.name, 0, partition.next_offset)
        found = [round(time.timestamp() * 1000) for time in (row.first_event, row.last_event)]
        assert found == [times[0], times[-1]]
        assert row.snapshots == ([50, 120] if row.partition == "queues-1" else [])
    own = tmp_path / "own"
    Snapshots(own).take(plain_fold(data, 0, 30))
    [row] = read(spark, data, view="partitions", partitions="queues-0", snapshots=str(own)).collect()
    assert row.snapshots == [30]


def test_of_a_partition_without_events_there_are_no_times(spark: SparkSession, tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path, partitions=1)
    log.close()
    [row] = read(spark, tmp_path, view="partitions").collect()
    assert row == ("queues-0", 0, 0, None, None, [])


def test_views_are_the_functions(spark: SparkSession, busy: Path) -> None:
    offsets = {"startingOffsets": '{"queues-0": 40}', "endingOffsets": '{"queues-1": 50}'}
    changes = {"changeStartOffset": offsets["startingOffsets"], "changeEndOffset": offsets["endingOffsets"]}
    wanted = history(spark, str(busy), offsets, "short").collect()
    assert wanted
    assert read(spark, busy, readChangeFeed="true", queue="short", **changes).collect() == wanted
    assert read(spark, busy, view="history", queue="short", **offsets).collect() == wanted
    beyond = {**offsets, "endingOffsets": '{"queues-0": 1000000, "queues-1": 50}', "failOnDataLoss": "false"}
    assert read(spark, busy, view="history", queue="short", **beyond).collect() == wanted
    moments: tuple[When, ...] = ({"offsets": '{"queues-1": 200}'}, {"time": str(START_MS + 7_000)})
    for when in moments:
        state = state_at(spark, str(busy), **when)
        option = {"asOfOffset": when["offsets"]} if "offsets" in when else {"asOfTimestamp": when["time"]}
        assert read(spark, busy, **option).collect() == state.queues.collect()
        assert read(spark, busy, view="messages", **option).collect() == state.messages.collect()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"view": "messages", "startingOffsets": "{}"}, "startingOffsets is for a range of offsets"),
        ({"view": "queues", "partitions": "queues-0"}, "partitions is for a range of offsets"),
        ({"view": "events", "asOfOffset": "{}"}, "the view events has no option asOfOffset"),
        ({"view": "messages", "failOnDataLoss": "false"}, "failOnDataLoss is for a range of offsets"),
        ({"view": "history", "asOfTimestamp": "0"}, "asOfTimestamp is for a moment"),
        ({"view": "queues", "readChangeFeed": "true"}, "readChangeFeed means the view history"),
        ({"readChangeFeed": "yes"}, "neither true nor false"),
        ({"readChangeFeed": "true", "changeEndOffset": "{}", "endingOffsets": "{}"}, "give one of them"),
        ({"changeStartOffset": "{}"}, "the view events has no option changeStartOffset"),
        ({"startingTimestmp": "2025-11-21T03:00:00Z"}, "unknown option startingtimestmp of rewindmq"),
        ({"view": "history", "includeBodies": "false"}, "the view history has no option includeBodies"),
        ({"view": "history", "log": "all"}, "the view history has no option log"),
        ({"view": "records", "includeHeaders": "true"}, "the view records has no option includeHeaders"),
        ({"includeHeaders": "x"}, "includeHeaders: 'x' is neither true nor false"),
        ({"fromCheckpoint": "1"}, "the view events has no option fromCheckpoint"),
        ({"snapshots": "own"}, "the view events has no option snapshots"),
        ({"view": "partitions", "minPartitions": "2"}, "the view partitions has no option minPartitions"),
        ({"minPartitions": "0"}, "minPartitions: '0' is not a number from 1 to 100000"),
        ({"minPartitions": "1.5"}, "minPartitions: '1.5' is not a number"),
        ({"minPartitions": "100001"}, "minPartitions: '100001' is not a number"),
        ({"view": "queues", "minPartitions": "-1"}, "minPartitions: '-1' is not a number"),
        ({"view": "x"}, "not one of events, records, history, queues, messages, partitions"),
    ],
)
def test_options_that_say_nothing_about_a_view_are_refused(options: dict[str, str], error: str) -> None:
    source = source_with({"path": "x", **options})
    with pytest.raises(BadRequest, match=error):
        source.reader(source.schema())


def test_times_by_partition_are_those_of_all(busy: Path) -> None:
    log = InDirectory(busy).open()
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
