"""A short look at each of Spark's doors, for Sparks other than the locked one: `make test-spark SPARK=4.0.2`.

It needs no connector: a small history in a directory, first sound, then with a publish and its ack taken out."""

import shutil
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.session import session
from rewindmq.spark_replay.snapshots.build import cut
from rewindmq.spark_replay.snapshots.verify import verify
from tests.support.spark.forging import DEAD, WORK, SoundLog, bad, dropped, forge, with_state, write_sound

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session(cores="2")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> SoundLog:
    found = write_sound(tmp_path_factory.mktemp("sound") / "data")
    with_state(found.data)
    return found


@pytest.fixture(scope="module")
def lossy(sound: SoundLog) -> Path:
    """The history without the publish of a message, in a log whose hash chain holds."""
    data = sound.data.parent / "lossy"
    forge(sound.data, data, sound.home, dropped(sound.first), claims_too=False)
    shutil.rmtree(data / "state")
    return data


def test_the_state_and_the_history(spark: SparkSession, sound: SoundLog, tmp_path: Path) -> None:
    state = state_at(spark, str(sound.data))
    assert {row.queue: row.messages_ready for row in state.queues.collect()} == {WORK: 0, DEAD: 3}
    ends = {
        (row.queue, row.message_id): row.outcome for row in history(spark, str(sound.data)).where("final").collect()
    }
    assert (ends[WORK, sound.first], ends[WORK, sound.dead]) == ("acked", "rejected")
    history(spark, str(sound.data)).write.parquet(str(tmp_path / "rows"))
    assert spark.read.parquet(str(tmp_path / "rows")).where("outcome = 'acked'").count() == 1


def test_the_events(spark: SparkSession, sound: SoundLog) -> None:
    events = spark.read.format("rewindmq").load(str(sound.data))
    assert events.where("event = 'Published'").count() == 5


def test_a_sound_history_is_found_sound(spark: SparkSession, sound: SoundLog, tmp_path: Path) -> None:
    assert bad(audit(spark, str(sound.data))) == []
    assert cut(spark, str(sound.data), 4, tmp_path / "own").snapshots > 0
    assert bad(verify(spark, str(sound.data), tmp_path / "own")) == []


def test_a_loss_is_found_and_located(spark: SparkSession, sound: SoundLog, lossy: Path, tmp_path: Path) -> None:
    cut(spark, str(sound.data), 4, tmp_path / "own")
    found = {(each.check, each.partition, each.offset) for each in bad(audit(spark, str(lossy)))}
    assert ("claims", f"queues-{sound.home}", sound.first + 2) in found, pyspark.__version__
    shutil.copytree(sound.data / "state", lossy / "state")
    assert {each.partition for each in bad(verify(spark, str(lossy)))} == {f"queues-{sound.home}"}
