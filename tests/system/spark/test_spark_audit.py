"""The audit passes what is sound and convicts what is not (B-18): a machine that lies, a changed log or RocksDB."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.data.effects import DeadLetter, Deliver, Effect, Forget, Refuse, Requeue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store import keys, rocks
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.checks import CHECKS
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.commands.report import print_report
from rewindmq.spark_replay.fold import log_groups
from tests.support.rocks import flipped, stored
from tests.support.spark.histories import Recorder

Lie = Callable[[list[Effect]], bool]
Kind = TypeVar("Kind")


class Liar(Machine):
    """A machine that is right about its state, and once says something else than what it did."""

    def __init__(self, partition: str, lie: Lie) -> None:
        super().__init__(partition)
        self.lie = lie
        self.lied_at = -1

    @classmethod
    def over(cls, machine: Machine, lie: Lie, lied_at: int) -> "Liar":
        """A liar that has the state of `machine`, now and later: what one of the two applies, both have applied."""
        liar = cls.__new__(cls)
        liar.__dict__ = machine.__dict__
        liar.lie, liar.lied_at = lie, lied_at
        return liar

    def apply(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        super().apply(offset, timestamp_ms, actor, event, effects)
        if self.lied_at < 0 and self.lie(effects):
            self.lied_at = offset


def fold_audit(data: Path, number: int, machine: Machine) -> list[dict[str, Any]]:
    partition = EmbeddedLogReader(data).queues[number]
    groups = log_groups(str(data), partition.name, 0, partition.next_offset)
    batches = fold_events(AuditProduct(partition.name), machine, groups)
    return [row for batch in batches for row in batch.to_pylist()]


def first(effects: list[Effect], kind: type[Kind], fits: Callable[[Kind], bool] = lambda effect: True) -> Kind | None:
    return next((effect for effect in effects if isinstance(effect, kind) and fits(effect)), None)


def hides(effects: list[Effect], found: Effect | None) -> bool:
    if found is not None:
        effects.remove(found)
    return found is not None


def hides_an_ack(effects: list[Effect]) -> bool:
    return hides(effects, first(effects, Forget, lambda f: f.reason == "acked"))


def acks_another(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "acked")
    if found:
        found.message_ids = [message_id - 1 for message_id in found.message_ids]
    return bool(found)


def delivers_twice(effects: list[Effect]) -> bool:
    found = first(effects, Deliver, lambda d: not d.final)
    if found:
        effects.append(found)
    return bool(found)


def forgets_to_say_redelivered(effects: list[Effect]) -> bool:
    found = first(effects, Deliver, lambda d: d.redelivered)
    if found:
        found.redelivered = False
    return bool(found)


def counts_a_delivery_too_few(effects: list[Effect]) -> bool:
    found = first(effects, Deliver, lambda d: d.delivery_count > 0)
    if found:
        found.delivery_count -= 1
    return bool(found)


def delivers_out_of_order(effects: list[Effect]) -> bool:
    deliveries = [e for e in effects if isinstance(e, Deliver) and not e.redelivered and not e.final]
    if len(deliveries) < 2 or deliveries[0].queue is not deliveries[1].queue:
        return False
    one, two = deliveries[:2]
    one.message_id, two.message_id = two.message_id, one.message_id
    return True


def expires_what_was_dropped(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "maxlen")
    if found:
        found.reason = "expired"
    return bool(found)


def drops_what_expired(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "expired" and f.queue.settings.max_length is None)
    if found:
        found.reason = "maxlen"
    return bool(found)


def hides_a_refusal(effects: list[Effect]) -> bool:
    return hides(effects, first(effects, Refuse))


def gives_back_to_nobody(effects: list[Effect]) -> bool:
    return hides(effects, first(effects, Requeue))


def skips_a_dead_letter(effects: list[Effect]) -> bool:
    return hides(effects, first(effects, DeadLetter))


LIES: dict[Lie, tuple[str, ...]] = {
    hides_an_ack: ("conservation", "settlement"),
    acks_another: ("conservation", "settlement"),
    delivers_twice: ("conservation",),
    forgets_to_say_redelivered: ("deliveries",),
    counts_a_delivery_too_few: ("deliveries",),
    delivers_out_of_order: ("order",),
    expires_what_was_dropped: ("ttl",),
    drops_what_expired: ("limits",),
    hides_a_refusal: ("conservation",),
    gives_back_to_nobody: ("conservation", "settlement"),
    skips_a_dead_letter: ("dead letters",),
}


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
    assert {f.check for f in findings} == {"chain", *CHECKS, "store", "policies", "arrivals"}
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
    from rewindmq.schemas.events import QueueDeclared
    from rewindmq.schemas.metadata_events import OperatorPolicySet, PolicySet
    from rewindmq.schemas.values import BROKER

    told = Recorder(tmp_path, partitions=1)
    told.metadata(PolicySet("/", "all", ".*", '{"max-length":9}', 0, "all"))
    told.metadata(OperatorPolicySet("/", "all", ".*", '{"message-ttl":9}', 0, "queues"))
    told.wait(1)
    for queue, kind in (("amq.delayed.later", "delayed"), ("amq.rabbitmq.reply-to.token", "classic")):
        told.append(0, BROKER, QueueDeclared("/", queue, kind, True, False, False, 0, (), "rabbitmq-3.13", None, None))
    told.close()
    assert [f for f in audit(spark, str(tmp_path)) if not f.ok] == []
