"""Seals of a history in Kafka: the commands, and what somebody may do who owns it (B-05). What Spark finds of that is
in tests/system/spark/test_spark_seals.py."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from rewindmq.engine.cli.main import run
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.keeping.archive.topic_recovery import recover_topics
from rewindmq.engine.keeping.archive.topic_seals import recover_topic_seals
from rewindmq.engine.keeping.seals import sealer as sealing
from rewindmq.engine.keeping.seals.in_topic import in_topics, split_time
from rewindmq.engine.keeping.seals.proof_verifier import main
from rewindmq.engine.keeping.seals.seal import BadSeal, StoredSeal, check_proof
from rewindmq.engine.keeping.seals.sealer import Harm, check, prove
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka import topics as kafka_topics
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.schemas.events import Purged
from rewindmq.schemas.service_records import SharedDecoder
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.plants import PLANTS, of_queues
from tests.support.kafka.sealed_topics import (
    KEY,
    KEYS,
    PRIVATE_PEM,
    PUBLIC_PEM,
    RECORDS,
    Topics,
    forged,
    history,
    in_short_stretches,
    purge,
    seal,
)

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True, scope="module")
def short_stretches() -> Iterator[None]:
    with in_short_stretches():
        yield


@pytest.fixture(scope="module")
def original(kafka: KafkaCluster) -> Topics:
    topics = history(kafka.bootstrap)
    assert [each.seal.next_offset for each in seal(topics)] == [1, 300, 600, 900, RECORDS]
    return topics


def harms(topics: Topics, copies: tuple[StoredSeal, ...] = ()) -> list[Harm]:
    return [each.harm for each in check(in_topics(topics.log), KEYS, copies) if each.harm is not None]


def test_b05_a_sound_copy_holds_under_any_prefix(original: Topics) -> None:
    assert harms(original) == []
    with forged(original) as same:
        pass
    assert harms(same) == []


@pytest.mark.parametrize("name", PLANTS)
def test_b05_every_harm_is_found_and_located(original: Topics, name: str) -> None:
    plant, partition, offset, what = PLANTS[name]
    with forged(original) as copy:
        plant(copy)
    found = harms(copy)
    assert any((each.partition, each.offset) == (partition, offset) and what in each.what for each in found), found
    assert min(each.offset or 0 for each in found if each.partition == partition) == offset


def test_b05_who_kept_copies_misses_newest_seals_that_were_taken_away(original: Topics) -> None:
    copies = tuple(each for part in in_topics(original.log) for each in part.seals()[0])
    assert harms(original, copies) == []
    with forged(original) as copy:
        del copy.chain[of_queues(copy)[-1]]
        copy.queues[950] = purge(77)
    assert harms(copy) == []  # nobody else can tell
    found = harms(copy, copies)
    assert {each.offset for each in found} == {900, 950}
    assert "the seal of offsets 900 to 999 is gone; there is a copy" in str(found)
    with pytest.raises(BadSeal, match="is gone; there is a copy"):
        seal(copy, copies=copies)  # it is not signed again


def test_b05_ends_of_transactions_have_their_place_and_sealing_goes_on(kafka: KafkaCluster) -> None:
    topics = history(kafka.bootstrap)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topics.prefix})
    producer.init_transactions()
    for _ in range(2):  # 1000, its end at 1001; 1002, its end at 1003
        producer.begin_transaction()
        producer.produce(f"{topics.prefix}.queues", purge(1)[1], b"", 0)
        producer.flush()
        producer.commit_transaction()
    assert seal(topics)[-1].seal.next_offset == 1_004
    assert harms(topics) == []
    assert seal(topics) == []
    [_, queues] = in_topics(topics.log)
    for offset, length in ((1_000, 100), (1_001, 0), (1_003, 0)):
        record = check_proof(prove(queues, offset), KEYS).record
        assert bool(record) == bool(length)
    topics.append("queues", [purge(5)])
    [new] = seal(topics)
    assert (new.seal.base_offset, new.seal.next_offset) == (1_004, 1_005)
    assert harms(topics) == []


def test_b05_two_who_seal_at_once_make_two_true_seals(kafka: KafkaCluster) -> None:
    topics = history(kafka.bootstrap)
    one, other = in_topics(topics.log), in_topics(topics.log)
    for part in (*one, *other):
        part.seals()  # each has read that there is none
    for parts in (one, other):
        for part in parts:
            list(sealing.seal(part, KEY, 7))
    assert harms(topics) == []
    topics.append("queues", [purge(5)])
    assert len(seal(topics)) == 1
    assert harms(topics) == []


def test_a_history_whose_beginning_is_gone_is_not_sealed_and_is_found(original: Topics) -> None:
    with forged(original) as copy:
        copy.chain = []
    admin = AdminClient({"bootstrap.servers": copy.bootstrap})
    partition = TopicPartition(f"{copy.prefix}.queues", 0, 20)
    admin.delete_records([partition])[partition].result(30)
    (gone,) = [part for part in in_topics(copy.log) if part.name == "queues-0"]
    with pytest.raises(BadSeal, match="its history begins at offset 20"):
        next(gone.walk(0, None, b""))  # said before so many records are made of nothing
    with pytest.raises(BadSeal, match="its history begins at offset 20"):
        seal(copy)
    with forged(original) as sealed:
        pass
    partition = TopicPartition(f"{sealed.prefix}.queues", 0, 20)
    admin.delete_records([partition])[partition].result(30)
    [found] = harms(sealed)
    assert (found.partition, found.offset) == ("queues-0", 0)
    assert "is gone" in found.what


def test_the_commands(
    original: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public, copies = tmp_path / "key", tmp_path / "pub", tmp_path / "copies"
    private.write_bytes(PRIVATE_PEM)
    public.write_bytes(PUBLIC_PEM)
    with forged(original) as topics:
        topics.chain = []
    there = ("--kafka", topics.bootstrap, "--kafka-prefix", topics.prefix)
    assert run(["seal", *there, "--key", str(private), "--copies", str(copies), "--formatter", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["partition"], row["to"]) for row in rows][-1] == ("queues-0", RECORDS - 1)
    assert run(["export_seals", *there]) == 0
    assert capsys.readouterr().out == copies.read_text()
    verify = ("verify_seals", "--public-key", str(public), "--copies", str(copies))
    assert run([*verify, *there]) == 0
    monkeypatch.setenv("REWINDMQ_KAFKA", topics.bootstrap)
    assert run([*verify, "--kafka-prefix", topics.prefix]) == 0
    monkeypatch.setattr(kafka_topics, "UNKNOWN_SECONDS", 0.2)
    assert run([*verify, "--kafka-prefix", "nowhere"]) == 69
    assert run([*verify, *there, "--data", str(tmp_path)]) == 64
    assert run(["verify_seals", *there, "--public-key", str(private)]) == 65
    capsys.readouterr()
    assert run(["prove", "queues-0:17", *there]) == 0
    (tmp_path / "proof.json").write_text(capsys.readouterr().out)
    assert run(["check_proof", str(tmp_path / "proof.json"), "--public-key", str(public)]) == 0
    assert "Purged queue='queue 17'" in capsys.readouterr().out
    register = ("--register", str(tmp_path / "register"))
    assert run(["seal", *there, "--key", str(private), *register, "--origin", "example.org/kafka"]) == 0
    assert run([*verify, *there, *register]) == 0
    capsys.readouterr()
    assert run(["prove", "queues-0:18", *there, *register]) == 0
    (tmp_path / "proof.json").write_text(capsys.readouterr().out)
    assert main([str(tmp_path / "proof.json"), "--public-key", str(public), "--origin", "example.org/kafka"]) == 0
    shown = capsys.readouterr().out
    assert f"register: seal number 1 of the {len(rows)} in example.org/kafka" in shown
    assert "queue 18" in shown
    assert run(["export_seals", *there, "--secrets"]) == 0
    with_secrets = capsys.readouterr().out
    for lines, said in (  # prints are gone, and secrets too
        (with_secrets, "queues-0 offset 0: offsets 0 to 299 are not the records"),
        (copies.read_text(), "metadata-0 offset 0: the secret of the seal of offsets 0 to 0 is gone"),
    ):
        with forged(topics) as bad:
            bad.queues[17] = bad.queues[18]
            bad.chain = [(0, line.encode()) for line in lines.splitlines()]
        assert run([*verify, "--kafka-prefix", bad.prefix]) == 1
        assert said in capsys.readouterr().err


def test_what_nodes_append_is_sealed_and_the_topic_may_lose_nothing(kafka: KafkaCluster) -> None:
    prefix = f"nodes-{uuid.uuid4().hex[:12]}"
    log = KafkaLog.open(kafka.bootstrap, prefix)
    for number in range(50):
        log.queues[number % 2].append(b"", purge(number)[1])
    log.flush()
    log.close()
    topics = Topics(kafka.bootstrap, prefix, [], [], [])
    ends = {each.seal.partition: each.seal.next_offset for each in seal(topics)}
    assert ends == {"queues-0": 25, "queues-1": 25}
    assert harms(topics) == []
    topics.append("queues", [purge(5)])
    resource = ConfigResource(ResourceType.TOPIC, f"{prefix}.chain")
    resource.add_incremental_config(ConfigEntry("retention.ms", "1000000", incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})  # it must live until the answer is there
    admin.incremental_alter_configs([resource])[resource].result(30)
    with pytest.raises(LogError, match=r"has retention.ms=1000000, and has to have -1"):
        seal(topics)


def test_a_sealed_record_is_kafkas_time_and_the_value(original: Topics) -> None:
    [_, queues] = in_topics(original.log)
    [one] = queues.walk(500, 501, b"")
    timestamp_ms, value = split_time(one.records[0])
    assert (timestamp_ms, value) == original.queues[500]
    event = SharedDecoder().decode(value)[2]
    assert isinstance(event, Purged)
    assert event.queue == "queue 500"


def test_b27_seals_are_archived_checked_below_kafkas_start_and_recovered(kafka: KafkaCluster, tmp_path: Path) -> None:
    topics = history(kafka.bootstrap)
    objects = open_objects(str(tmp_path / "archive"), make=True)
    archiver = TopicArchiver(objects, topics.log, settle_seconds=0)
    archiver.run(roll=True)
    assert not list(objects.list("queues-0/seals")), "nothing is sealed"
    seal(topics)
    archiver.run(roll=True)
    archiver.run(roll=True)
    archiver.close()
    there = [key for name in ("metadata-0", "queues-0") for key in objects.list(f"{name}/seals")]
    assert len(there) == 2 * 5, "five seals with their openings"
    topics.log.queues[0].delete_below(450)
    [first, *_] = harms(topics)
    assert first.partition == "queues-0", "without the archive the records are gone"
    checked = list(check(in_topics(topics.log, objects.url), KEYS, ()))
    assert [(each.harm, each.unchecked) for each in checked] == [(None, "")] * 5

    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(topics.log.topics.queues, purge(RECORDS)[1], partition=0)
    assert producer.flush(30) == 0
    [_, of_queues] = in_topics(topics.log)
    with pytest.raises(BadSeal, match="begins at offset 450"):
        list(sealing.seal(of_queues, KEY, 1))
    [_, of_queues] = in_topics(topics.log, objects.url)
    [more] = sealing.seal(of_queues, KEY, 1)
    assert more.seal.base_offset == RECORDS

    prefix = f"again-{uuid.uuid4().hex[:12]}"
    recover_topics(objects, KafkaClients(topics.bootstrap), prefix)
    again = KafkaLogReader(topics.bootstrap, prefix)
    assert [each.harm for each in check(in_topics(again), KEYS, ())] == [None] * 5
    ends = {each.name: each.next_offset for each in (again.metadata, *again.queues)}
    assert recover_topic_seals(objects, again, ends) == 0, "they are there"
    TopicArchiver(objects, again, settle_seconds=0).run(roll=True)
    assert [key for name in ("metadata-0", "queues-0") for key in objects.list(f"{name}/seals")] == there
