"""spark.readStream.format("rewindmq"): each event once, over restarts, none that a crash may take back
(docs/behaviours/interfaces.md#spark)."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.embedded.index import ENTRY
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections import system_calls
from rewindmq.projections.rewind import OutsideHistory, UnreadableTime
from rewindmq.spark_replay.commands.failures import cause_of
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.source.source import RewindSource
from rewindmq.spark_replay.source.stream_reader import LogStream
from tests.support.running import RunningBroker
from tests.support.spark.histories import Recorder

pytestmark = pytest.mark.long


def stream(data: Path, **options: str) -> LogStream:
    source = RewindSource({"path": str(data), **options})
    found = source.streamReader(source.schema())
    assert isinstance(found, LogStream)
    return found


def run(spark: SparkSession, data: Path, out: Path, **options: str) -> list[dict[str, dict[str, int]]]:
    """A query over all that is there now, into `out`; the offsets of its batches with rows."""
    reader = spark.readStream.format("rewindmq").option("path", str(data))
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = reader.load().writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(out / "rows"))
    query.awaitTermination()
    return [
        {"start": source["startOffset"], "end": source["endOffset"]}
        for progress in (json.loads(each.json) for each in query.recentProgress)
        for source in progress["sources"]
        if progress["numInputRows"]
    ]


def rows(spark: SparkSession, out: Path) -> list[tuple[str, int]]:
    return sorted((row.partition, row.offset) for row in spark.read.parquet(str(out / "rows")).collect())


def all_of(data: Path, starts: dict[str, int] | None = None) -> list[tuple[str, int]]:
    return sorted(
        (partition.name, offset)
        for partition in EmbeddedLogReader(data).queues
        for offset in range((starts or {}).get(partition.name, 0), partition.next_offset)
    )


@pytest.fixture
def told(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    history = Recorder(data)
    for queue in ("rest", "calm", "still", "quiet"):
        history.declare(queue)
        history.publish(queue, b"first")
    history.close()
    return data


def tell(data: Path, count: int) -> None:
    history = Recorder(data)
    for n in range(count):
        history.publish(("rest", "calm", "still", "quiet")[n % 4], b"%d" % n)
    history.close()


def test_a_query_goes_on_where_it_was(spark: SparkSession, told: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    [first] = run(spark, told, out)
    assert first["end"] == {each.name: each.next_offset for each in EmbeddedLogReader(told).queues}
    assert run(spark, told, out) == []
    tell(told, 30)
    [second] = run(spark, told, out, minPartitions="5")
    assert second["start"] == first["end"]
    assert rows(spark, out) == all_of(told)
    found = spark.read.parquet(str(out / "rows")).where("event = 'Published'")
    whole = spark.read.format("rewindmq").option("path", str(told)).load().where("event = 'Published'")
    assert sorted(map(str, found.collect())) == sorted(map(str, whole.collect()))
    # The end of a batch can be pasted: another query begins there
    other = tmp_path / "other"
    tell(told, 3)
    run(spark, told, other, view="records", startingOffsets=json.dumps(second["end"]))
    assert rows(spark, other) == all_of(told, second["end"])
    # ... and once there is a checkpoint, startingOffsets says nothing any more
    tell(told, 3)
    run(spark, told, other, view="records", startingOffsets="earliest")
    assert rows(spark, other) == all_of(told, second["end"])


def test_a_batch_that_was_cut_off_has_the_same_rows_again(spark: SparkSession, told: Path, tmp_path: Path) -> None:
    """It is in the checkpoint as planned and not as done; more came since. Of a Python data source availableNow is one
    batch a run, so the rest comes with the next."""
    out = tmp_path / "out"
    [first] = run(spark, told, out)
    shutil.rmtree(out / "rows")
    for commit in (out / "checkpoint" / "commits").iterdir():
        commit.unlink()
    tell(told, 30)
    [again] = run(spark, told, out)
    assert again["end"] == first["end"]
    [rest] = run(spark, told, out)
    assert rest["start"] == first["end"]
    assert rows(spark, out) == all_of(told)


@pytest.mark.rare
def test_beside_a_running_broker(
    spark: SparkSession, start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    broker = start_broker()
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    out = tmp_path / "out"
    for begin in (0, 20, 40):
        for n in range(begin, begin + 20):
            channel.basic_publish("", "orders", b"%d" % n, pika.BasicProperties(delivery_mode=2))
        run(spark, broker.data, out)  # what is confirmed is durable
        published = spark.read.parquet(str(out / "rows")).where("event = 'Published'").orderBy("offset").collect()
        assert [bytes(row.body) for row in published] == [b"%d" % n for n in range(begin + 20)]
    connection.close()


def test_only_what_is_durable_is_given_out(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of the index says that its block was synced; its reader syncs a block without one."""
    synced: list[str] = []
    sync = system_calls.sync

    def noted(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name)
        sync(descriptor)

    tell(told, 20)
    partition = EmbeddedLogReader(told).queues[0]
    end = partition.next_offset
    monkeypatch.setattr(system_calls, "sync", noted)
    assert (stream(told).latestOffset()["queues-0"], synced) == (end, [])
    index, segment = next(partition.directory.glob("_*.index")), next(partition.directory.glob("*.avro"))
    with index.open("r+b") as file:
        file.truncate(file.seek(0, 2) - ENTRY.size)
    assert (stream(told).latestOffset()["queues-0"], synced) == (end, ["queues-0"])
    assert stream(told, startingOffsets="latest").initialOffset()["queues-0"] == end
    last = [*partition.read()][-1]
    with segment.open("r+b") as file:  # half a block, as while it is written
        file.truncate(file.seek(0, 2) - 5)
    assert stream(told).latestOffset()["queues-0"] == last.first_offset < end
    index.unlink()
    assert stream(told).latestOffset()["queues-0"] == last.first_offset
    assert set(synced) == {"queues-0"}


def test_what_was_lost_is_an_error_or_left_out(told: Path, tmp_path: Path) -> None:
    tell(told, 20)
    there = stream(told).latestOffset()
    zero = there["queues-0"]
    for start, end in ((0, zero + 1), (zero, zero - 1), (zero + 5, zero)):
        with pytest.raises(OutsideHistory, match=f"failOnDataLoss: queues-0 has offsets 0 to {min(end, zero)}"):
            stream(told).partitions({**there, "queues-0": start}, {**there, "queues-0": end})
    lax = stream(told, failOnDataLoss="false")
    [part] = lax.partitions({**there, "queues-0": 3}, {**there, "queues-0": zero + 1})
    assert (part.value.start, part.value.end) == (3, zero)
    assert lax.partitions({**there, "queues-0": zero + 5}, there) == []
    with pytest.raises(BadRequest, match="checkpoint of this query is of queues-0, but the query is of queues-0, q"):
        stream(told).partitions({"queues-0": 0}, {"queues-0": 1})


@pytest.mark.rare
def test_an_older_log_in_its_place_ends_a_query(spark: SparkSession, told: Path, tmp_path: Path) -> None:
    backup, out = tmp_path / "backup", tmp_path / "out"
    shutil.copytree(told, backup)
    tell(told, 20)
    run(spark, told, out)
    shutil.rmtree(told)
    shutil.copytree(backup, told)
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own wrapping
        run(spark, told, out)
    name, line = cause_of(caught.value)
    assert name == "OutsideHistory"
    assert line.startswith("failOnDataLoss: queues-")
    assert run(spark, told, out, failOnDataLoss="false") == []
    tell(told, 4)
    [batch] = run(spark, told, out)
    assert batch["end"] == stream(told).latestOffset()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"view": "history"}, "a stream has the view events or records; history is for spark.read"),
        ({"asOfOffset": "{}"}, "a stream has the view events or records; queues"),
        ({"view": "partitions"}, "a stream has the view events or records; partitions"),
        ({"endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
        ({"endingTimestamp": "0"}, "endingTimestamp: a stream has no end"),
        ({"failOnDataLoss": "maybe"}, "neither true nor false"),
    ],
)
def test_what_a_stream_cannot_be_asked(options: dict[str, str], error: str) -> None:
    with pytest.raises(BadRequest, match=error):
        stream(Path("x"), **options).latestOffset()


def test_a_beginning_that_makes_no_sense_ends_the_query_with_one_line(
    spark: SparkSession, told: Path, tmp_path: Path
) -> None:
    for options, name in (
        ({"startingTimestamp": "noon"}, UnreadableTime),
        ({"startingOffsets": "{"}, BadRequest),
        ({"startingOffsets": '{"queues-0": 999}'}, OutsideHistory),
    ):
        with pytest.raises(name):
            stream(told, **options).initialOffset()
    for options, line in (
        ({"view": "history"}, "a stream has the view events or records; history is for spark.read"),
        ({"endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own wrapping
            run(spark, told, tmp_path / "out", **options)
        assert cause_of(caught.value) == ("BadRequest", line)
        assert "UnboundLocalError" not in str(caught.value)
