"""format("rewindmq") over a history in a real Kafka: the rows that it has over a data directory, and once each
(docs/behaviours/interfaces.md#spark)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rewind import OutsideHistory, RewindError
from rewindmq.projections.store.snapshots import SnapshotError
from rewindmq.schemas.single_object import HEADER
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.commands.failures import cause_of
from rewindmq.spark_replay.fold import fold_frame
from rewindmq.spark_replay.history.history import history_of
from rewindmq.spark_replay.location.log import newest_ms, partition_of
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange
from rewindmq.spark_replay.snapshots.build import cut
from rewindmq.spark_replay.source.options import TableOptions
from rewindmq.spark_replay.source.source import RewindSource
from rewindmq.spark_replay.source.stream_reader import LogStream
from tests.support.kafka.cluster import KafkaCluster
from tests.support.spark.histories import ANN, START_MS, plain_fold
from tests.support.spark.source import source_with
from tests.support.spark.topics import SECONDS, Writer, make_topics, published, write_gaps

pytestmark = pytest.mark.long

KAFKA = "kafka.bootstrap.servers"
SECRET = "hunter2"


@pytest.fixture(scope="module")
def copied(busy: Path, kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, "sourced", 2)
    Writer(place).copy(busy)
    return place


@pytest.fixture(scope="module")
def gaps(kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, "sourced-gaps", 1)
    write_gaps(place)
    return place


def options_of(place: InKafka | Path) -> dict[str, str]:
    return {"path": str(place)} if isinstance(place, Path) else {KAFKA: place.bootstrap, "kafkaPrefix": place.prefix}


def read(spark: SparkSession, place: InKafka | Path, **options: str) -> DataFrame:
    return spark.read.format("rewindmq").options(**options_of(place), **options).load()


def source(place: InKafka | Path, **options: str) -> RewindSource:
    return source_with({**options_of(place), **options})


def planned(place: InKafka | Path, **options: str) -> list[OffsetRange]:
    found = source(place, **options)
    return [partition.value for partition in found.reader(found.schema()).partitions()]


def rows(place: InKafka | Path, **options: str) -> list[dict[str, Any]]:
    """Return the rows that the tasks of a query would yield, without Spark."""
    asked = source(place, **options)
    reader = asked.reader(asked.schema())
    found: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert not isinstance(batch, tuple)
            found += batch.to_pylist()
    return found


def stream(place: InKafka, **options: str) -> LogStream:
    found = source(place, **options)
    stream = found.streamReader(found.schema())
    assert isinstance(stream, LogStream)
    return stream


def refused(read: Any) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own wrapping
        read()
    assert SECRET not in str(caught.value)
    return cause_of(caught.value)


# -- the same history in both logs --------------------------------------------------------------------------------


def test_spark_has_the_rows_that_it_has_over_a_data_directory(spark: SparkSession, busy: Path, copied: InKafka) -> None:
    for options in ({"log": "all"}, {"view": "history"}):
        there, here = (read(spark, place, **options) for place in (copied, busy))
        assert there.schema == here.schema
        assert there.drop("record").collect() == here.drop("record").collect()


@pytest.mark.parametrize(
    "options",
    [
        {"log": "all", "includeHeaders": "true"},
        {
            "includeBodies": "false",
            "startingTimestamp": str(START_MS + 4_000),
            "endingTimestamp": str(START_MS + 9_000),
            "minPartitions": "5",
        },
        {"readChangeFeed": "true", "queue": "short", "changeStartOffset": '{"queues-0": 40}'},
        {"asOfTimestamp": str(START_MS + 7_000)},
        {"view": "messages", "asOfOffset": '{"queues-1": 200}'},
        {"view": "partitions", "log": "all"},
    ],
)
def test_a_view_has_the_rows_that_it_has_over_a_data_directory(
    busy: Path, copied: InKafka, options: dict[str, str]
) -> None:
    there, here = (rows(place, **options) for place in (copied, busy))
    assert here
    for row in here:
        if "record" in row:  # as its log has it
            row["record"] = HEADER + row["record"]
    assert there == here


def test_records_are_folded_to_the_same_states(spark: SparkSession, busy: Path, copied: InKafka) -> None:
    class Digest:
        run = None

        def __init__(self, partition: str) -> None:
            self.partition = partition

        def begin(self, machine: Machine) -> None:
            self.machine = machine

        def nothing(self, *_: Any) -> None: ...

        before = event = undecodable = nothing

        def take(self, last: bool) -> Iterator[Any]:
            if last:
                import pyarrow

                row = {"partition": self.partition, "digest": self.machine.digest()}
                yield pyarrow.RecordBatch.from_pylist([row])

    schema = columns.table(partition=columns.TEXT, digest=columns.TEXT)
    frames = [read(spark, place, view="records") for place in (copied, busy)]
    assert [frame.columns for frame in frames] == [columns.KAFKA_RECORDS.names, columns.RECORDS.names]
    ends = enumerate(partition.next_offset for partition in copied.open().queues)
    expected = [(f"queues-{number}", plain_fold(busy, number, end).digest()) for number, end in ends]
    for frame in frames:
        assert fold_frame(frame, Digest, schema).collect() == expected


def test_a_stretch_is_cut_where_the_same_is_asked_of_a_data_directory(busy: Path, copied: InKafka) -> None:
    begin, end = str(START_MS + 300), str(START_MS + 500)
    for options in (
        {"minPartitions": "7"},
        {"startingOffsets": '{"queues-0": 10, "queues-1": -2}', "endingOffsets": "latest"},
        {"startingTimestamp": begin, "endingTimestamp": end, "log": "all"},
        {"startingOffsetsByTimestamp": json.dumps({"queues-1": int(begin)}), "partitions": "queues-1"},
        {"startingTimestamp": "2030-01-01T00:00:00Z", "startingOffsetsByTimestampStrategy": "latest"},
        {"endingOffsets": '{"queues-0": 1000000}', "failOnDataLoss": "false"},
    ):
        assert planned(copied, **options) == planned(busy, **options)
    assert len(planned(copied, minPartitions="7")) == 7


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"endingTimestamp": "2001-01-01T00:00:00Z"}, "is before the history"),
        ({"endingTimestamp": "2999-01-01T00:00:00Z"}, "lies in the future"),
        ({"startingTimestamp": "2999-01-01T00:00:00Z"}, "nothing was logged at or after"),
        ({"endingOffsets": '{"queues-0": 1000000}'}, "queues-0 has offsets 0 to"),
        ({"partitions": "queues-2"}, "there is no queues-2; there are queues-0, queues-1"),
        ({"view": "queues", "asOfTimestamp": "mark:none"}, "none"),
        ({"view": "queues", "snapshots": "no-such-directory"}, "no-such-directory: no such directory"),
    ],
)
def test_bad_ranges_are_refused(copied: InKafka, options: dict[str, str], error: str) -> None:
    with pytest.raises(RewindError, match=error):
        planned(copied, **options)


def test_snapshots_of_an_own_directory_are_used(
    spark: SparkSession, busy: Path, copied: InKafka, tmp_path: Path
) -> None:
    own = str(tmp_path / "own")
    done = cut(spark, copied, 150, tmp_path / "own")
    pieces = {"view": "history", "snapshots": own}
    assert len(planned(copied, **pieces)) == 2 + done.in_all
    assert rows(copied, **pieces) == rows(busy, view="history")
    at = {"asOfOffset": '{"queues-0": 350}', "snapshots": own, "fromCheckpoint": '{"queues-0": 150}'}
    assert rows(copied, **at) == rows(busy, asOfOffset=at["asOfOffset"])
    [there] = rows(copied, view="partitions", snapshots=own, partitions="queues-1")
    assert there["snapshots"] == [*range(150, there["end_offset"] + 1, 150)]
    with pytest.raises(BadRequest, match="queues-0 has no snapshot at 151; there are 150, "):
        planned(copied, **{**at, "fromCheckpoint": '{"queues-0": 151}'})
    (tmp_path / "own" / "queues-0" / f"{150:020d}.snapshot").write_bytes(b"")
    with pytest.raises(SnapshotError):
        rows(copied, **at)


# -- what only Kafka has ------------------------------------------------------------------------------------------


def test_offsets_that_are_no_records_are_passed(spark: SparkSession, gaps: InKafka) -> None:
    found = rows(gaps)
    assert [row["offset"] for row in found] == [0, 2, 3, 5, 7, 8, 9, 11, 12, 14]
    assert [row["offset"] for row in found if row["event"] == "Undecodable"] == [7, 8, 9]
    assert [row["body"] for row in found if row["body"] is not None] == [b"at 2", b"at 3", b"at 5", b"at 14"]
    assert len(planned(gaps, minPartitions="16")) == 16  # a Spark partition an offset
    assert rows(gaps, minPartitions="16") == found
    assert history_of(read(spark, gaps, view="records")).collect() == read(spark, gaps, view="history").collect()
    [there] = rows(gaps, view="partitions")
    assert (there["start_offset"], there["end_offset"], there["snapshots"]) == (0, 16, [])
    times = [round(there[name].timestamp() * 1000) - START_MS for name in ("first_event", "last_event")]
    assert times == [0, 9]
    partition = partition_of(gaps, "queues-0")
    newest = [newest_ms(partition, *stretch) for stretch in ((13, 14), (4, 7), (5, 5))]
    assert newest == [None, START_MS + 3, None]


@pytest.fixture
def told(kafka: KafkaCluster, tmp_path: Path) -> Writer:
    """A topic of its own, written in transactions. What is appended has another time in the event than in Kafka."""
    place = make_topics(kafka.bootstrap, f"told-{tmp_path.name}", 2)
    writer = Writer(place, **{"transactional.id": place.prefix})
    writer.producer.init_transactions()
    return writer


def tell(writer: Writer, *bodies: bytes, ends: str = "commit") -> None:
    """A message each in one transaction, in turns to both partitions."""
    writer.producer.begin_transaction()
    for n, body in enumerate(bodies):
        event = writer.encoder.encode(writer.encoder.prefix(START_MS - 1_000, ANN), published(body))
        writer.value(writer.place.queues, n % 2, START_MS, event)
    writer.flush()
    if ends == "commit":
        writer.producer.commit_transaction()
    elif ends == "abort":
        writer.producer.abort_transaction()


def run(spark: SparkSession, place: InKafka, out: Path, **options: str) -> list[tuple[dict[str, int], dict[str, int]]]:
    """A query over all that is there now, into `out`; the offsets of its batches with rows."""
    frame = spark.readStream.format("rewindmq").options(**options_of(place), **options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(out / "rows"))
    query.awaitTermination()
    return [
        (each["startOffset"], each["endOffset"])
        for progress in (json.loads(each.json) for each in query.recentProgress)
        for each in progress["sources"]
        if progress["numInputRows"]
    ]


def bodies(spark: SparkSession, out: Path) -> list[bytes]:
    return sorted(bytes(row.body) for row in spark.read.parquet(str(out / "rows")).collect())


@pytest.mark.rare
def test_a_stream_has_each_row_once_over_restarts(spark: SparkSession, told: Writer, tmp_path: Path) -> None:
    place, out = told.place, tmp_path / "out"
    tell(told, b"0", b"1", b"2")
    [(_, first)] = run(spark, place, out)
    assert first == {"queues-0": 3, "queues-1": 2}  # with the end of the transaction
    tell(told, b"3", b"4", ends="abort")  # was appended all the same
    tell(told, b"5", ends="")  # and so this, which has not ended
    [(start, second)] = run(spark, place, out, minPartitions="5")
    assert (start, second) == (first, {"queues-0": 6, "queues-1": 4})
    told.producer.commit_transaction()
    assert run(spark, place, out) == []  # the end alone
    assert bodies(spark, out) == [b"%d" % n for n in range(6)]
    assert {row.timestamp.timestamp() * 1000 for row in spark.read.parquet(str(out / "rows")).collect()} == {START_MS}
    # A batch that is done again has the same rows, though more came since
    tell(told, b"6")
    again, end = stream(place), {"queues-0": 9, "queues-1": 4}
    assert again.latestOffset() == end
    for since, up_to, expected in ((first, second, {3, 4, 5}), (second, end, {6})):
        batches = [batch for part in again.partitions(since, up_to) for batch in again.read(part)]
        assert {int(row["body"]) for batch in batches for row in batch.to_pylist()} == expected


def test_what_kafka_deleted_is_an_error_or_left_out(told: Writer) -> None:
    place = told.place
    tell(told, *(b"%d" % n for n in range(10)))
    strict, lax = stream(place), stream(place, failOnDataLoss="false")
    start, end = strict.initialOffset(), strict.latestOffset()
    assert (start, end) == ({"queues-0": 0, "queues-1": 0}, {"queues-0": 6, "queues-1": 6})
    part = strict.partitions(start, end)[0]
    admin = AdminClient({"bootstrap.servers": place.bootstrap})  # it must live until the answer is there
    [deleted] = admin.delete_records([TopicPartition(place.queues, 0, 3)]).values()
    deleted.result(SECONDS)
    with pytest.raises(OutsideHistory, match="failOnDataLoss: queues-0 has offsets 3 to 6, the query stands at 0"):
        strict.partitions(start, end)
    with pytest.raises(OutsideHistory, match="queues-0 has offsets 3 to 6 by now, and offsets 0 to 6 are to be read"):
        list(strict.read(part))  # planned before
    assert [batch.num_rows for batch in lax.read(part)] == [2]
    assert [each.value for each in lax.partitions(start, end)] == [
        OffsetRange("queues-0", 3, 6),
        OffsetRange("queues-1", 0, 6),
    ]
    with pytest.raises(OutsideHistory, match="queues-1 has offsets 0 to 6, the query stands at 0 and asks up to 7"):
        strict.partitions(end | {"queues-1": 0}, end | {"queues-1": 7})
    assert stream(place, startingTimestamp=str(START_MS)).initialOffset() == {"queues-0": 3, "queues-1": 0}


def test_a_checkpoint_of_another_place_is_refused(copied: InKafka, gaps: InKafka) -> None:
    end = stream(copied).latestOffset()
    with pytest.raises(BadRequest, match=r"is of queues-0, queues-1, but the query is of queues-0$"):
        stream(gaps).partitions(end, end)


# -- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, 'where is the history: option "path", a data directory, "archive", or "kafka.bootstrap.servers"?'),
        ({"path": "x", KAFKA: "h:1"}, "where is the history: path or kafka.bootstrap.servers? Give one of them"),
        ({"path": "x", "data": "y"}, "where is the history: path or data? Give one of them"),
        ({"path": "x", "kafka.sasl.password": SECRET}, "kafka.sasl.password is for a history in Kafka: also give"),
        ({"data": "x", "kafkaPrefix": SECRET}, "kafkaPrefix is for a history in Kafka"),
        ({KAFKA: " "}, "where is the history"),
        ({KAFKA: "h:1", "kafkaPrefx": SECRET}, "unknown option kafkaprefx of rewindmq"),
        ({KAFKA: "h:1", "kafka.Isolation.Level": SECRET}, "kafka.isolation.level cannot be set: a history is read in"),
        ({KAFKA: "h:1", "fromCheckpoint": "1", "view": "queues"}, "a Kafka has no snapshots beside it"),
        ({KAFKA: "h:1", "view": "queues", "startingOffsets": "{}"}, "startingOffsets is for a range of offsets"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_a_line(options: dict[str, str], error: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(error)) as caught:
        source_with(options).schema()
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("no.such", SECRET, 'No such configuration property: "no.such"'),
        ("security.protocol", SECRET, 'Invalid value "***" for configuration property "security.protocol"'),
        ("debug", f"all,{SECRET}", 'Invalid value "***" for configuration property "debug"'),
        ("error_cb", SECRET, "expected error_cb property as a callable function"),
        ("default.topic.config", SECRET, "Kafka: its client cannot be set up: "),
    ],
)
def test_a_setting_that_librdkafka_refuses_is_one_line_without_the_value(
    copied: InKafka, setting: str, value: str, error: str
) -> None:
    with pytest.raises(LogError, match=re.escape(error)) as caught:
        planned(copied, **{f"kafka.{setting}": value})
    assert "\n" not in str(caught.value)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert SECRET not in str(caught.value)


def test_an_error_of_a_setting_reaches_whoever_reads_with_spark(
    spark: SparkSession, copied: InKafka, tmp_path: Path
) -> None:
    name, line = refused(read(spark, copied, **{"kafka.security.protocol": SECRET}).count)
    assert (name, line.partition(":")[0]) == ("LogError", "Kafka")
    name, line = refused(lambda: run(spark, copied, tmp_path, **{"kafka.security.protocol": SECRET}))
    assert (name, "***" in line) == ("LogError", True)
    name, line = refused(read(spark, InKafka(copied.bootstrap, "nowhere")).count)
    assert (name, "no topic nowhere.metadata" in line) == ("NoSuchTopic", True)


def test_nothing_that_is_printed_has_a_setting_in_it(spark: SparkSession, copied: InKafka) -> None:
    given = {"kafka.sasl.password": SECRET}  # which librdkafka does not look at without security.protocol
    frame = read(spark, copied, **given)
    execution = frame._jdf.queryExecution()
    assert frame.count() == sum(partition.next_offset for partition in copied.open().queues)
    assert SECRET not in execution.toString() + execution.executedPlan().treeString()
    asked = TableOptions({**options_of(copied), **given})
    assert SECRET not in f"{asked.location} {asked.location!r} {asked.options}"
    assert asked.location == InKafka(copied.bootstrap, copied.prefix, (("sasl.password", SECRET),))


def test_the_prefix_is_rewindmq_unless_it_is_said(spark: SparkSession) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_kafka USING rewindmq OPTIONS ({KAFKA} 'h:1', kafkaPrefix 'p')")
    assert spark.table("of_kafka").columns == [*columns.EVENTS.names, "body"]
    assert TableOptions({KAFKA: "h:1", "kafkaPREFIX": "p"}).location == InKafka("h:1", "p")
    assert TableOptions({KAFKA: "h:1"}).location == InKafka("h:1", "rewindmq")
