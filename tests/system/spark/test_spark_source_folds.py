"""Options of the folds of format("rewindmq") about snapshots: fromCheckpoint, snapshots
(docs/behaviours/interfaces.md#spark)."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots
from rewindmq.schemas.values import BROKER
from rewindmq.spark_replay.commands.failures import cause_of
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.ranges import BadRequest, CheckpointRange, OffsetRange
from tests.support.events_for_tests import declared
from tests.support.spark.histories import START_MS, plain_fold
from tests.support.spark.source import read, source_with


@pytest.fixture(scope="module")
def cut(busy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The busy history with sound snapshots of both partitions, and one of queues-0 at 200 that tells of a queue which
    nobody declared: so it is seen from where a fold began."""
    data = tmp_path_factory.mktemp("cut") / "data"
    shutil.copytree(busy, data)
    snapshots = Snapshots(data / "snapshots")
    for number, at in ((0, 100), (0, 300), (1, 100)):
        snapshots.take(plain_fold(data, number, at))
    machine = plain_fold(data, 0, 200)
    event = declared("/", "planted", durable=True, semantics="rabbitmq-3.13")
    machine.apply(199, machine.clock_ms, BROKER, event, [])
    snapshots.take(machine)
    return data


def planned(data: Path, **options: str) -> list[OffsetRange]:
    source = source_with({"path": str(data), **options})
    return [partition.value[0] for partition in source.reader(source.schema()).partitions()]


@pytest.mark.rare
@pytest.mark.long
def test_a_state_is_folded_from_the_checkpoint_that_was_named(spark: SparkSession, cut: Path) -> None:
    at = '{"queues-0": 350, "queues-1": 350}'
    sound = state_at(spark, str(cut), offsets=at)
    for view, expected in (("queues", sound.queues.collect()), ("messages", sound.messages.collect())):
        for checkpoint in ('{"queues-0": 100}', '{"queues-0": 300, "queues-1": 100}'):
            found = read(spark, cut, view=view, asOfOffset=at, fromCheckpoint=checkpoint)
            assert found.collect() == expected
    planted = read(spark, cut, asOfOffset=at, fromCheckpoint='{"queues-0": 200}').where("queue = 'planted'")
    assert planted.count() == 1
    assert read(spark, cut, asOfOffset=at).where("queue = 'planted'").count() == 0
    # A bare number will do where one partition is asked for, and the clock goes on to the time
    one = read(spark, cut, asOfOffset='{"queues-0": 200}', fromCheckpoint="200")
    assert one.where("queue = 'planted'").count() == 1
    later = {"asOfTimestamp": str(START_MS + 1_000_000)}
    found = read(spark, cut, **later, fromCheckpoint='{"queues-0": 100}')
    assert found.collect() == state_at(spark, str(cut), time=later["asOfTimestamp"]).queues.collect()


@pytest.mark.long
def test_a_history_is_shown_from_the_checkpoint_that_was_named(spark: SparkSession, cut: Path) -> None:
    whole = history(spark, str(cut)).where("partition = 'queues-0'").collect()
    stretch = {"view": "history", "partitions": "queues-0"}
    found = read(spark, cut, **stretch, fromCheckpoint="100")
    assert found.rdd.getNumPartitions() == 1
    assert found.collect() == [row for row in whole if row.offset >= 100]
    changes = {"readChangeFeed": "true", "changeStartOffset": '{"queues-0": 320}'}
    changes["fromCheckpoint"] = '{"queues-0": 100}'
    part = read(spark, cut, **changes).where("partition = 'queues-0'").collect()
    assert part == [row for row in whole if row.offset >= 320]
    zero, one = (partition.next_offset for partition in EmbeddedLogReader(cut).queues)
    assert planned(cut, **changes) == [
        CheckpointRange("queues-0", 320, zero, 100),
        OffsetRange("queues-1", 0, 100),
        OffsetRange("queues-1", 100, one),
    ]


def test_a_fold_is_cut_at_snapshots_and_nowhere_else(cut: Path) -> None:
    for least in ("1", "3", "1000"):
        found = planned(cut, view="history", minPartitions=least)
        assert [(each.partition, each.start) for each in found] == [
            *(("queues-0", at) for at in (0, 100, 200, 300)),
            *(("queues-1", at) for at in (0, 100)),
        ]
        assert len(planned(cut, view="messages", minPartitions=least)) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"fromCheckpoint": '{"queues-0": 150}'}, "queues-0 has no snapshot at 150; there are 100, 200, 300$"),
        ({"fromCheckpoint": '{"queues-1": 0}'}, "queues-1 has no snapshot at 0; there are 100$"),
        ({"fromCheckpoint": '{"queues-0": -1}'}, "queues-0 has no snapshot at -1"),
        ({"fromCheckpoint": "100"}, "fromCheckpoint: 100 names no partition"),
        ({"fromCheckpoint": '{"queues-7": 1}'}, "fromCheckpoint: there is no partition queues-7"),
        (
            {"fromCheckpoint": '{"queues-0": 300}', "asOfOffset": '{"queues-0": 299}'},
            "queues-0 at 300 lies beyond the moment asked for, offset 299",
        ),
        ({"fromCheckpoint": '{"queues-0": 300}', "asOfTimestamp": str(START_MS)}, "at 300 lies beyond the moment"),
        (
            {"view": "history", "fromCheckpoint": '{"queues-0": 300}', "endingOffsets": '{"queues-0": 200}'},
            "queues-0 at 300 lies beyond the moment",
        ),
        (
            {"view": "history", "fromCheckpoint": '{"queues-0": 300}', "startingOffsets": '{"queues-0": 200}'},
            "queues-0 at 300 lies beyond the beginning of the range asked for, which begins at 200",
        ),
        ({"snapshots": "no-such-directory"}, "no-such-directory: no such directory"),
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_refused(cut: Path, options: dict[str, str], error: str) -> None:
    with pytest.raises(BadRequest, match=error):
        planned(cut, **{"view": "queues", **options})


def test_of_many_snapshots_the_nearest_are_listed(cut: Path, tmp_path: Path) -> None:
    (tmp_path / "own" / "queues-0").mkdir(parents=True)
    for at in range(10, 310, 10):
        Snapshots(tmp_path / "own").path("queues-0", at).touch()
    listed = ", ".join(map(str, range(10, 210, 10)))
    with pytest.raises(BadRequest, match=f"no snapshot at 101; there are {listed} and 10 further away$"):
        planned(cut, view="queues", snapshots=str(tmp_path / "own"), fromCheckpoint='{"queues-0": 101}')


@pytest.mark.long
def test_own_snapshots_are_used_and_a_damaged_checkpoint_is_an_error(
    spark: SparkSession, busy: Path, cut: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(cut / "snapshots", own)
    found = read(spark, busy, view="queues", snapshots=str(own), asOfOffset='{"queues-0": 200}')
    assert found.where("queue = 'planted'").count() == 1
    pieces = read(spark, busy, view="history", snapshots=str(own), endingOffsets='{"queues-0": 100}')
    assert pieces.rdd.getNumPartitions() == 3
    damaged = own / "queues-0" / f"{100:020d}.snapshot"
    content = bytearray(damaged.read_bytes())
    content[-40] ^= 1  # behind the header, before the last sync marker
    damaged.write_bytes(content)
    asked = {"view": "queues", "snapshots": str(own), "asOfOffset": '{"queues-0": 150}'}
    assert read(spark, busy, **asked).collect() == read(spark, busy, asOfOffset='{"queues-0": 150}').collect()
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own wrapping
        read(spark, busy, **asked, fromCheckpoint="100").collect()
    name, line = cause_of(caught.value)
    assert name == SnapshotError.__name__
    assert damaged.name in line
    # A snapshot under another's name
    shutil.copy(own / "queues-0" / f"{300:020d}.snapshot", damaged)
    with pytest.raises(Exception, match="it is of queues-0 at offset 300"):
        read(spark, busy, **asked, fromCheckpoint="100").collect()
