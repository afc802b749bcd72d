"""The audit passes what is sound and convicts what is not (B-18): a machine that lies, a changed log or RocksDB."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.data.effects import Deliver, Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store import keys, rocks
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.checks import CHECKS
from rewindmq.spark_replay.commands.report import print_report
from tests.support.auditing import fold_audit
from tests.support.events_for_tests import declared
from tests.support.rocks import flipped, stored
from tests.support.spark.histories import Recorder
from tests.support.spark.liars import LIES, Liar, Lie

pytestmark = pytest.mark.of_pure  # compiled code takes no machine that lies


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_b18_a_machine_that_lies_is_found_where_it_lies(busy: Path, lie: Lie) -> None:
    for number in (0, 1):
        liar = Liar(f"queues-{number}", lie)
        rows = fold_audit(busy, number, liar)
        if liar.lied_at >= 0:
            break
    assert liar.lied_at >= 0, "the history gave no occasion for this lie"
    found = {row["check"] for row in rows if not row["ok"]}
    assert found & set(LIES[lie])
    assert next(row["offset"] for row in rows if not row["ok"]) == liar.lied_at


def test_prefetch_is_held_against_each_consumer(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    for _ in range(5):
        told.publish("orders", b"x")
    told.consume("orders", 1, prefetch=2)
    told.consume("orders", 2, prefetch=2)
    told.close()

    def all_to_the_first(effects: list[Effect]) -> bool:
        mine = [e for e in effects if isinstance(e, Deliver) and e.consumer == 2]
        for delivery in mine:
            delivery.consumer = 1
        return bool(mine)

    rows = fold_audit(tmp_path, 0, Liar("queues-0", all_to_the_first))
    assert "prefetch" in {row["check"] for row in rows if not row["ok"]}


def channel_of_two(told: Recorder) -> None:
    """Consumers 1 and 2 of a channel that may have three messages, set when the first was there already."""
    told.declare("orders")
    told.consume("orders", 1, prefetch=2)
    told.global_prefetch(3)
    told.consume("orders", 2, shared=3)


def test_a_channels_prefetch_is_held_against_its_consumers(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    channel_of_two(told)
    told.consume("orders", 3, prefetch=9, session=8)
    for _ in range(8):
        told.publish("orders", b"x")
    told.close()
    assert all(row["ok"] for row in fold_audit(tmp_path, 0, Machine("queues-0")))

    def to_the_second(effects: list[Effect]) -> bool:
        mine = [e for e in effects if isinstance(e, Deliver) and e.consumer == 3]
        for delivery in mine:
            delivery.consumer = 2
        return bool(mine)

    rows = fold_audit(tmp_path, 0, Liar("queues-0", to_the_second))
    found = [row["detail"] for row in rows if row["check"] == "prefetch" and not row["ok"]]
    assert any("the consumers of channel 1 have 4 messages, their prefetch is 3" in detail for detail in found), rows


def test_a_channels_prefetch_may_change_and_go_with_its_channel(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    channel_of_two(told)
    ids = [told.publish("orders", b"x") for _ in range(20)]
    told.global_prefetch(5)
    told.global_prefetch(1)
    told.ack("orders", 1, ids[0])
    told.global_prefetch(0)
    told.disconnect(7)
    told.consume("orders", 4, prefetch=9)
    told.close()
    assert all(row["ok"] for row in fold_audit(tmp_path, 0, Machine("queues-0")))


def test_a_machine_that_tells_the_truth_passes(busy: Path) -> None:
    for number in (0, 1):
        rows = fold_audit(busy, number, Machine(f"queues-{number}"))
        assert [row["check"] for row in rows if row["ok"]] == list(CHECKS)
        assert all(row["ok"] for row in rows)


def test_a_false_claim_of_the_broker_is_found(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    told.claim(0)
    told.publish("orders", b"x")
    lied = told.claim(0, "0" * 64)
    told.close()
    bad = [row for row in fold_audit(tmp_path, 0, Machine("queues-0")) if not row["ok"]]
    assert [(row["check"], row["offset"]) for row in bad] == [("claims", lied)]


# -- the whole audit, by Spark ------------------------------------------------------------------------------------


def test_a_sound_history_passes_with_every_check(
    spark: SparkSession, live: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = audit(spark, str(live))
    assert [f for f in findings if not f.ok] == []
    assert {f.check for f in findings} == {"chain", *CHECKS, "store", "policies", "arrivals", "publishes"}
    assert any("bodies, equal at offset" in f.detail for f in findings if f.check == "store")
    print_report(findings, "table")
    printed = capsys.readouterr().out
    assert "audit passed" in printed
    assert "conservation" in printed


def test_a_flipped_byte_is_named_with_file_and_offset(spark: SparkSession, live: Path) -> None:
    segment = next((live / "log" / "queues-0").glob("*.avro"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(bytes(content))
    findings = audit(spark, str(live))
    bad = [f for f in findings if not f.ok]
    assert [(f.check, f.partition, f.corrupt) for f in bad] == [("chain", "queues-0", True)]
    assert segment.name in bad[0].detail
    assert bad[0].offset is not None
    assert {f.partition for f in findings if f.check == "conservation"} == {"queues-1"}  # the sound one is audited


def test_a_changed_body_in_rocksdb_is_named(spark: SparkSession, live: Path) -> None:
    partition = EmbeddedLogReader(live).queues[0]
    machine = Machine(partition.name)
    from rewindmq.projections.replay import fold

    fold(machine, partition)
    queue, message_id = next((q, next(q.ready_ids())) for q in machine.queues() if q.messages_ready)
    prefix = keys.partition_prefix(partition.name)
    key = keys.message(prefix, queue.queue_id, message_id)
    db = rocks.open_database(live / "state")
    db[key] = flipped(stored(db, key))
    db.close()
    bad = [f for f in audit(spark, str(live)) if not f.ok]
    found = [(f.check, f.partition, f.queue, f.message_id) for f in bad]
    assert found == [("store", "queues-0", f"//{queue.name}", message_id)]


def test_a_record_left_out_of_a_rewritten_log_contradicts_the_claims(spark: SparkSession, tmp_path: Path) -> None:
    """Somebody rewrites the log without one record, chain and all: the bytes agree, the broker's own claim does not."""
    told = Recorder(tmp_path / "true", partitions=1)
    told.declare("orders")
    for n in range(5):
        told.publish("orders", b"%d" % n)
    told.claim(0)
    told.close()
    forged = Recorder(tmp_path / "forged", partitions=1)
    forged.declare("orders")
    for n in (0, 1, 3, 4):
        forged.publish("orders", b"%d" % n)
    forged.tick(0)
    forged.claim(0, told.machines[0].digest())
    forged.close()
    assert all(f.ok for f in audit(spark, str(tmp_path / "true")))
    assert {f.check for f in audit(spark, str(tmp_path / "forged")) if not f.ok} == {"claims"}


def test_a_policy_that_nobody_set_is_found(spark: SparkSession, tmp_path: Path) -> None:
    from rewindmq.schemas.events import PolicyApplied
    from rewindmq.schemas.values import BROKER, Policy

    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    told.policy("orders", "sound", '{"max-length":9}')
    told.append(0, BROKER, PolicyApplied("/", "orders", Policy("forged", '{"max-length":1}', 2), None))
    told.close()
    bad = [f for f in audit(spark, str(tmp_path)) if not f.ok]
    assert [(f.check, f.partition) for f in bad] == [("policies", "queues-0")]
    assert "forged" in bad[0].detail


def test_a_policy_that_was_set_and_never_applied_is_found(spark: SparkSession, tmp_path: Path) -> None:
    from rewindmq.schemas.metadata_events import PolicySet

    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    told.metadata(PolicySet("/", "lim", "^orders$", '{"max-length":1}', 0, "queues"))
    told.wait(1)
    told.publish("orders", b"x")
    told.close()
    bad = [f for f in audit(spark, str(tmp_path)) if not f.ok]
    assert [(f.check, f.queue) for f in bad] == [("policies", "//orders")]


def test_policies_that_fit_every_name_leave_the_brokers_queues_alone(spark: SparkSession, tmp_path: Path) -> None:
    from rewindmq.schemas.metadata_events import OperatorPolicySet, PolicySet
    from rewindmq.schemas.values import BROKER

    told = Recorder(tmp_path, partitions=1)
    told.metadata(PolicySet("/", "all", ".*", '{"max-length":9}', 0, "all"))
    told.metadata(OperatorPolicySet("/", "all", ".*", '{"message-ttl":9}', 0, "queues"))
    told.wait(1)
    for queue, kind in (("amq.delayed.later", "delayed"), ("amq.rabbitmq.reply-to.token", "classic")):
        told.append(
            0,
            BROKER,
            declared("/", queue, type=kind, durable=True, semantics="rabbitmq-3.13"),
        )
    told.close()
    assert [f for f in audit(spark, str(tmp_path)) if not f.ok] == []
