"""Tests of service.py that look at the history: what happened to each order, and why.

pytest examples/test_service.py        needs pip install pytest pika
"""

from typing import TYPE_CHECKING

import service

if TYPE_CHECKING:
    from rewindmq.testing import TestVhost

pytest_plugins = ["rewindmq.testing"]


def test_each_order_is_worked_on_once(rewindmq: "TestVhost") -> None:
    service.publish(2, rewindmq.url)
    service.consume(2, rewindmq.url)
    rows = rewindmq.wait_for("orders", "acked", 2)
    assert sorted(row["outcome"] for row in rows) == [
        "acked",
        "acked",
        "delivered",
        "delivered",
        "published",
        "published",
    ]
    assert not any(row["redelivered"] for row in rows)


def test_an_order_without_an_ack_comes_again(rewindmq: "TestVhost") -> None:
    service.publish(1, rewindmq.url)
    with service.connect(rewindmq.url) as connection:
        method, _, _ = connection.channel().basic_get(service.QUEUE)
        assert method is not None
    service.consume(1, rewindmq.url)
    rows = rewindmq.wait_for("orders", "acked")
    assert [row["outcome"] for row in rows] == ["published", "delivered", "requeued", "delivered", "acked"]
    assert [row["delivery_count"] for row in rows if row["outcome"] == "delivered"] == [0, 1]
