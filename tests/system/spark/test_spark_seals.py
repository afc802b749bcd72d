"""The audit checks seals, stretch by stretch, and finds and locates what somebody did to the history (B-05)."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.seals import sealer as sealing
from rewindmq.engine.keeping.seals.in_files import segmented
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.seals import check_seals
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.plants import PLANTS
from tests.support.kafka.sealed_topics import KEY, KEYS, PUBLIC_PEM, Topics, forged, history, in_short_stretches, seal
from tests.support.spark.histories import Recorder

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True, scope="module")
def short_stretches() -> Iterator[None]:
    with in_short_stretches():
        yield


@pytest.fixture(scope="module")
def in_kafka(kafka: KafkaCluster) -> Topics:
    topics = history(kafka.bootstrap)
    seal(topics)
    return topics


def place_of(topics: Topics) -> InKafka:
    return InKafka(topics.bootstrap, topics.prefix)


def test_b05_sealed_topics_pass(spark: SparkSession, in_kafka: Topics) -> None:
    found = check_seals(spark, place_of(in_kafka), KEYS)
    assert [(f.check, f.ok, f.partition) for f in found] == [("seals", True, "metadata-0"), ("seals", True, "queues-0")]
    assert "4 seals up to offset 1000, 0 offsets behind it not sealed, signed by" in found[1].detail
    assert "signatures not checked" in check_seals(spark, place_of(in_kafka))[1].detail


# All of them are in tests/system/kafka/test_kafka_seals.py
@pytest.mark.parametrize("name", ["a bit", "dropped", "swapped", "put in", "a seal", "a key", "a seal gone"])
def test_b05_every_harm_in_kafka_is_found_and_located(spark: SparkSession, in_kafka: Topics, name: str) -> None:
    plant, partition, offset, what = PLANTS[name]
    with forged(in_kafka) as copy:
        plant(copy)
    bad = [f for f in check_seals(spark, place_of(copy), KEYS) if not f.ok and f.partition == partition]
    assert bad[0].offset == offset
    assert any(what in f.detail for f in bad), bad


# -- the embedded log -------------------------------------------------------------------------------------------------


def told(data: Path, numbers: list[int]) -> Path:
    """1,000 events: one of the broker, and those with these numbers."""
    history = Recorder(data, partitions=1)
    for at, number in enumerate(numbers):
        history.now_ms = 1_763_694_000_000 + number
        history.publish("orders", b"%d" % number)
        if at % 20 == 0:
            history.log.commit_and_wait()
    history.close()
    return data


ALL = list(range(1_000))


@pytest.fixture(scope="module")
def in_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = told(tmp_path_factory.mktemp("sealed") / "data", ALL)
    for part in segmented(data):
        assert list(sealing.seal(part, KEY, 7))
    return data


def seals(data: Path) -> list[Path]:
    return sorted((data / "log" / "queues-0").glob("_*.seal"))


def flip_a_bit(data: Path) -> None:
    path = segment_files(data / "log" / "queues-0")[0]
    content = bytearray(path.read_bytes())
    content[-1_000] ^= 4
    path.write_bytes(content)


def written_anew(numbers: list[int]) -> Callable[[Path], None]:
    """By somebody who has the software; the log is sound in itself."""

    def write_anew(data: Path) -> None:
        queues = data / "log" / "queues-0"
        other = told(data.parent / "other", numbers) / "log" / "queues-0"
        for path in (*queues.glob("_*.seal"), *queues.glob("_*.secret")):
            shutil.copy(path, other)
        shutil.rmtree(queues)
        shutil.move(other, queues)

    return write_anew


def change_a_seal(data: Path) -> None:
    content = json.loads(seals(data)[1].read_text())
    content["seal"]["root"] = "00" * 32
    seals(data)[1].write_text(json.dumps(content))


def take_a_seal_away(data: Path) -> None:
    seals(data)[1].unlink()


def seal_with_another_key(data: Path) -> None:
    for path in seals(data):
        path.unlink()
    for part in segmented(data):
        if part.name != "metadata-0":
            list(sealing.seal(part, Ed25519PrivateKey.generate(), 7))


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (flip_a_bit, "its bytes do not match"),
        (written_anew([*ALL[:516], *ALL[517:]]), "a record was dropped at offset 517"),
        (written_anew([*ALL[:516], 7, *ALL[516:]]), "a record was put in at offset 517"),
        (written_anew([*ALL[:516], 539, *ALL[517:539], 516, *ALL[540:]]), "at offsets 517 and 540 were swapped"),
        (change_a_seal, "the signature is not one of the key"),
        (take_a_seal_away, "is gone, which"),
        (seal_with_another_key, "the signature is not one of the key"),
    ],
)
def test_b05_every_harm_in_files_is_found_and_located(
    spark: SparkSession, in_files: Path, tmp_path: Path, harm: Callable[[Path], None], what: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(in_files, data)
    harm(data)
    bad = [f for f in check_seals(spark, str(data), KEYS) if not f.ok]
    told_of: list[Finding] = [f for f in bad if what in f.detail]
    assert told_of, bad
    assert told_of[0].partition == "queues-0"
    assert told_of[0].offset is not None


def test_b05_the_command_line(
    spark: SparkSession, in_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, public = tmp_path / "data", tmp_path / "pub"
    shutil.copytree(in_files, data)
    public.write_bytes(PUBLIC_PEM)
    copies = tmp_path / "copies"
    copies.write_text("".join(path.read_text() for path in seals(data)))
    audit = ["audit", "--data", str(data), "--public-key", str(public), "--copies", str(copies)]
    assert cli.run(audit) == 0
    assert "Merkle root" in capsys.readouterr().out
    seals(data)[-1].unlink()
    assert cli.run(audit) == 1
    assert "is gone; there is a copy" in capsys.readouterr().out
    assert cli.run(["audit", "--data", str(data), "--public-key", str(copies)]) == 65
    assert "not a public key in PEM" in capsys.readouterr().err
    copies.write_text("nonsense")
    assert cli.run(audit) == 65
