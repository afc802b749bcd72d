"""history: one row an outcome (B-18), and biographies: one answer for each way a message can end (B-03)."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.history.outcome_rows import BATCH_ROWS
from rewindmq.projections.history.outcomes import is_queue
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.events import BrokerStarted, Published
from rewindmq.schemas.values import BROKER, Origin, Route
from rewindmq.spark_replay.fold import log_groups
from rewindmq.spark_replay.history.history import biography, history, history_of
from rewindmq.spark_replay.history.outcomes import HistoryProduct
from rewindmq.spark_replay.location.ranges import BadRequest
from tests.support.spark.histories import ANN, START_MS, Recorder, plain_fold


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A history in which each message ends in another way: {how: message id}, all in one partition."""
    data = tmp_path_factory.mktemp("ends")
    told = Recorder(data, partitions=1)
    ids: dict[str, int] = {}
    told.declare("acked")
    ids["acked"] = told.publish("acked", b"a")
    told.consume("acked", 1, prefetch=1)
    told.nack("acked", 1, ids["acked"])
    told.ack("acked", 1, ids["acked"])
    told.declare("no-ack")
    told.consume("no-ack", 2, no_ack=True)
    ids["delivered"] = told.publish("no-ack", b"b")
    told.declare("expired", {"x-message-ttl": 50})
    ids["expired"] = told.publish("expired", b"c")
    told.wait(60)
    told.tick(0)
    told.declare("dropped")
    ids["maxlen"] = told.publish("dropped", b"d")
    told.publish("dropped", b"e")
    told.policy("dropped", "lim", '{"max-length":1}')
    told.declare("rejected", {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "graveyard"})
    told.declare("graveyard")
    ids["rejected"] = told.publish("rejected", b"f")
    told.get("rejected", 3)
    told.nack("rejected", 3, ids["rejected"], requeue=False)
    origin = Origin("/", "rejected", queue_id(told, "rejected"), ids["rejected"], "rejected", 1)
    route = Route("/", "dlx", "graveyard", ("graveyard",))
    told.append(
        0,
        BROKER,
        Published(route, b"\x10\x00\x02", persistent=True, origin=origin, body=b"f", body_size=1),
    )
    told.declare("poison", {"x-delivery-limit": 1}, "quorum")
    ids["delivery_limit"] = told.publish("poison", b"g")
    told.consume("poison", 4, prefetch=1)
    told.nack("poison", 4, ids["delivery_limit"])
    told.nack("poison", 4, ids["delivery_limit"])
    told.declare("purged")
    ids["purged"] = told.publish("purged", b"h")
    told.purge("purged")
    told.declare("deleted")
    ids["deleted"] = told.publish("deleted", b"i")
    told.delete("deleted")
    told.declare("strict", {"x-max-length": 0, "x-overflow": "reject-publish"})
    ids["refused"] = told.publish("strict", b"j")
    told.declare("kept")
    ids["transient"] = told.publish("kept", b"k", persistent=False)
    told.append(0, BROKER, BrokerStarted("rewindmq@localhost", "0.1.0", 1))
    told.close()
    return data, ids


def queue_id(told: Recorder, name: str) -> int:
    queue = told.machines[0].queue("/", name)
    assert queue is not None
    return queue.queue_id


def test_b03_every_way_to_end_has_one_answer(spark: SparkSession, ends: tuple[Path, dict[str, int]]) -> None:
    data, ids = ends
    rows = history(spark, str(data)).collect()
    for how, message_id in ids.items():
        about = [row for row in rows if row.message_id == message_id and row.queue != "graveyard"]
        assert about[0].outcome == ("refused" if how == "refused" else "published"), how
        endings = [row.outcome for row in about if row.final]
        assert endings == ([] if how == "refused" else [how])


def test_b03_a_row_names_who_and_which_rule(spark: SparkSession, ends: tuple[Path, dict[str, int]]) -> None:
    data, ids = ends
    rows = {(r.message_id, r.outcome): r for r in history(spark, str(data)).collect()}
    acked = rows[ids["acked"], "acked"]
    assert (acked.user, acked.session, acked.consumer, acked.event) == ("ann", 7, 1, "Acked")
    dropped = rows[ids["maxlen"], "maxlen"]
    assert (dropped.rule, dropped.policy, dropped.event) == ("policy lim.max-length", "lim", "PolicyApplied")
    assert dropped.policy_version == 2
    expired = rows[ids["expired"], "expired"]
    assert (expired.rule, expired.event, expired.policy) == ("argument x-message-ttl", "Tick", None)
    assert rows[ids["delivery_limit"], "delivery_limit"].rule == "argument x-delivery-limit"
    assert rows[ids["refused"], "refused"].rule == "argument x-max-length"


def test_b03_a_biography_is_in_order_and_follows_the_dead_letter(
    spark: SparkSession, ends: tuple[Path, dict[str, int]]
) -> None:
    data, ids = ends
    rows = biography(spark, str(data), f"queues-0:{ids['rejected']}").collect()
    assert [(r.queue, r.outcome, r.reason) for r in rows] == [
        ("rejected", "published", None),
        ("rejected", "delivered", "get"),
        ("rejected", "rejected", None),
        ("rejected", "dead_lettered", "rejected"),
        ("graveyard", "published", None),
    ]
    assert rows[-1].origin.queue == "rejected"
    assert (rows[3].exchange, rows[3].routing_key) == ("dlx", "graveyard")
    again = biography(spark, str(data), str(ids["acked"]), queue="acked").collect()
    assert [(r.outcome, r.redelivered) for r in again] == [
        ("published", None),
        ("delivered", False),
        ("requeued", None),
        ("delivered", True),
        ("acked", None),
    ]


@pytest.mark.parametrize("message", ["nonsense", "queues-0:99999", "queues-7:1"])
def test_a_message_that_never_was_is_an_error(
    spark: SparkSession, ends: tuple[Path, dict[str, int]], message: str
) -> None:
    with pytest.raises(BadRequest):
        biography(spark, str(ends[0]), message)


def test_b18_published_is_what_left_and_what_is_there(spark: SparkSession, busy: Path) -> None:
    rows = history(spark, str(busy)).collect()
    published = Counter((r.queue, r.queue_id) for r in rows if r.outcome == "published")
    left = Counter((r.queue, r.queue_id) for r in rows if r.final)
    for number, partition in enumerate(EmbeddedLogReader(busy).queues):
        for queue in plain_fold(busy, number, partition.next_offset).queues():
            key = (queue.name, queue.queue_id)
            assert published[key] == left[key] + queue.messages_ready + queue.messages_unacked
    assert len({(r.partition, r.offset, r.ordinal) for r in rows}) == len(rows)


def test_history_is_the_same_from_the_log_from_a_frame_and_in_pieces(
    spark: SparkSession, busy: Path, tmp_path: Path
) -> None:
    whole = history(spark, str(busy)).collect()
    records = spark.read.format("rewindmq").option("path", str(busy)).option("view", "records").load()
    assert history_of(records).collect() == whole
    data = tmp_path / "data"
    shutil.copytree(busy, data)
    for at in (200, 350):
        Snapshots(data / "snapshots").take(plain_fold(busy, 0, at))
    cut = history(spark, str(data))
    assert cut.rdd.getNumPartitions() == 4
    assert cut.collect() == whole


def test_a_stretch_of_history_is_that_part_of_the_whole(spark: SparkSession, busy: Path) -> None:
    whole = history(spark, str(busy), queue="short").collect()
    start = START_MS + 2_000
    part = history(
        spark, str(busy), {"startingTimestamp": str(start), "endingTimestamp": str(start + 3_000)}, "short"
    ).collect()
    assert part
    assert part == [r for r in whole if start <= round(r.timestamp.timestamp() * 1000) <= start + 3_000]


def test_a_large_purge_is_packed_as_it_comes(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("long")
    for _ in range(BATCH_ROWS + 10):
        told.publish("long", b"")
    told.purge("long")
    end = told.log.queues[0].next_offset
    told.close()
    product = HistoryProduct("queues-0")
    batches = list(fold_events(product, Machine("queues-0"), log_groups(tmp_path, "queues-0", 0, end)))
    assert max(batch.num_rows for batch in batches) <= BATCH_ROWS
    assert sum(batch.num_rows for batch in batches) == 2 * (BATCH_ROWS + 10)
    assert ANN.user == batches[-1].column("user")[0].as_py()


@pytest.mark.parametrize(
    ("wanted", "vhost", "name", "is_it"),
    [
        ("orders", "/", "orders", True),
        ("//orders", "/", "orders", True),
        ("orders", "shop", "orders", False),
        ("shop/orders", "shop", "orders", True),
        ("shop/orders", "/", "shop/orders", True),  # a name may have slashes in it, and a vhost
        ("shop/eu/orders", "shop/eu", "orders", True),
        ("shop/eu/orders", "shop", "eu/orders", True),
        ("shop/eu/orders", "eu", "orders", False),
        ("None/None", None, None, False),  # a row that is about no queue
    ],
)
def test_a_queue_is_called_by_its_name_or_with_its_vhost(
    wanted: str, vhost: str | None, name: str | None, is_it: bool
) -> None:
    assert is_queue(wanted, vhost, name) == is_it


def test_rows_of_an_event_that_fills_a_batch_say_the_same_in_the_next(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    for queue in ("long", "other"):
        told.declare(queue)
    for _ in range(BATCH_ROWS // 2 + 10):
        told.publish("long", b"12")
    told.publish("other", b"345")
    at = told.purge("long")
    end = told.log.queues[0].next_offset
    told.close()
    for only, published in ((None, 1), ("long", 0)):
        product = HistoryProduct("queues-0", only)
        batches = list(fold_events(product, Machine("queues-0"), log_groups(tmp_path, "queues-0", 0, end)))
        assert [batch.num_rows for batch in batches] == [BATCH_ROWS, 20 + published]
        rows = [row for batch in batches for row in batch.to_pylist()]
        purged = [row for row in rows if row["event"] == "Purged"]
        assert [row["ordinal"] for row in purged] == list(range(BATCH_ROWS // 2 + 10))
        assert {(r["offset"], r["queue"], r["outcome"], r["user"], r["size"]) for r in purged} == {
            (at, "long", "purged", ANN.user, None)
        }
        assert [row["size"] for row in rows if row["queue"] == "other"] == [3] * published


@pytest.mark.parametrize("message", ["queues-0:999999", "999999", "queues-9:1", "queues-0:-1"])
def test_a_message_behind_the_end_needs_no_fold_to_be_refused(busy: Path, message: str) -> None:
    with pytest.raises(BadRequest, match=f"no message {message} in the history: "):
        biography(None, str(busy), message)  # type: ignore[arg-type]  # no Spark: nothing is folded
