"""An auditor understands several nodes in one partition: claims that come late, lost nodes, brokers that crashed."""

from pathlib import Path
from typing import Any

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import (
    BrokerStarted,
    CheckpointAsked,
    Checkpointed,
    NodeLost,
    Published,
    SessionClosed,
)
from rewindmq.schemas.values import BROKER, EPOCH_SHIFT, Actor, Route
from rewindmq.spark_replay.audit.checks import CHECKS
from rewindmq.spark_replay.fold import log_groups
from rewindmq.spark_replay.history.outcomes import HistoryProduct
from rewindmq.spark_replay.location.log import partition_of
from tests.support.auditing import fold_audit
from tests.support.events_for_tests import attached
from tests.support.spark.histories import Recorder

ON_NODE_3, ON_NODE_5 = Actor("ann", 3 << EPOCH_SHIFT | 1), Actor("bob", 5 << EPOCH_SHIFT | 1)


def findings(data: Path) -> list[dict[str, Any]]:
    rows = fold_audit(data, 0, Machine("queues-0"))
    assert {row["check"] for row in rows} == set(CHECKS)
    return [row for row in rows if not row["ok"]]


def publish(told: Recorder, actor: Actor) -> int:
    body = b"from a node"
    route = Route("/", "", "orders", ("orders",))
    return told.append(
        0,
        actor,
        Published(route, b"\x10\x00\x02", persistent=True, body=body, body_size=len(body)),
    )


def consume(told: Recorder, actor: Actor, consumer: int, prefetch: int) -> int:
    return told.append(
        0,
        actor,
        attached("/", "orders", consumer, channel=1, tag="", prefetch=prefetch),
    )


def outcomes(data: Path) -> list[tuple[str, str | None, int | None]]:
    end = partition_of(InDirectory(data), "queues-0").next_offset
    batches = fold_events(HistoryProduct("queues-0"), Machine("queues-0"), log_groups(data, "queues-0", 0, end))
    return [(row["event"], row["outcome"], row["message_id"]) for batch in batches for row in batch.to_pylist()]


def test_claims_about_an_asked_offset_are_compared_however_late_they_come(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    publish(told, ON_NODE_3)
    asked = told.append(0, BROKER, CheckpointAsked())
    true = told.machines[0].digest()
    publish(told, ON_NODE_5)
    told.append(0, BROKER, Checkpointed(asked, true, "red"))
    told.append(0, BROKER, NodeLost("blue", 3, "lapsed"))
    lied = told.append(0, BROKER, Checkpointed(asked, "0" * 64, "blue"))  # a lost node is held to its word too
    told.append(0, BROKER, Checkpointed(asked - 1, true, "green"))  # nobody asked: passed by
    final = told.append(0, BROKER, Checkpointed(told.machines[0].next_offset - 1, "1" * 64, "red", True))
    told.close()
    bad = findings(tmp_path)
    assert [(row["check"], row["offset"]) for row in bad] == [("claims", lied), ("claims", final)]
    claimed = f"node blue claimed {'0' * 64} after offset {asked}, the fold has {true}"
    assert bad[0]["detail"] == f"{claimed}; the last that held is of offset {asked}"
    assert "node red claimed 111" in bad[1]["detail"]


def test_true_claims_name_who_made_them(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    asked = told.append(0, BROKER, CheckpointAsked())
    digest = told.machines[0].digest()
    for node in ("red", "blue"):
        told.append(0, BROKER, Checkpointed(asked, digest, node))
    told.close()
    details = [row["detail"] for row in fold_audit(tmp_path, 0, Machine("queues-0")) if row["check"] == "claims"]
    assert details == ["2 claims by blue, red"]


def test_a_lost_node_gives_back_what_it_held_and_only_publishes_count(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    first = publish(told, ON_NODE_3)
    consume(told, ON_NODE_3, ON_NODE_3.session, 1)
    lost = told.append(0, BROKER, NodeLost("blue", 3, "lapsed"))
    late = publish(told, ON_NODE_3)
    consume(told, ON_NODE_3, ON_NODE_3.session + 1, 1)
    told.append(0, ON_NODE_3, SessionClosed(ON_NODE_5.session, 0))
    consume(told, ON_NODE_5, ON_NODE_5.session, 1)
    told.append(0, ON_NODE_3, NodeLost("red", 5, "lapsed"))
    told.append(0, BROKER, NodeLost("blue", 3, "lapsed"))
    publish(told, ON_NODE_5)
    told.close()
    assert findings(tmp_path) == []
    assert told.out[ON_NODE_5.session] == {first: "orders"}
    rows = outcomes(tmp_path)
    assert ("NodeLost", "requeued", first) in rows
    assert [row[1] for row in rows if row[2] == late] == ["published"]  # the node may have confirmed it
    assert [row[1] for row in rows].count("quarantined") == 3
    assert lost < late


def test_after_a_crash_what_was_ready_counts_as_redelivered(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    before = told.publish("orders", b"before")
    told.append(0, BROKER, BrokerStarted("rewindmq@localhost", "0.1.0", 1, True))
    after = told.publish("orders", b"after")
    told.consume("orders", 100, 5)
    told.close()
    assert told.out[100] == {before: "orders", after: "orders"}
    assert findings(tmp_path) == []


def test_what_a_service_appended_with_bad_properties_was_in_no_queue(tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    route = Route("/", "", "orders", ("orders",))
    sound, broken = (
        told.append(
            0,
            Actor("service", 0),
            Published(route, properties, persistent=True, body=b"x", body_size=1),
        )
        for properties in (b"\x10\x00\x02", b"\x10")
    )
    told.close()
    assert findings(tmp_path) == []
    assert ("Published", "published", sound) in outcomes(tmp_path)
    assert ("Published", "published", broken) not in outcomes(tmp_path)
