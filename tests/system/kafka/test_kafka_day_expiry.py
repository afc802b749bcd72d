"""Bodies for so many days, events for ever (B-21), on nodes that share a log and a directory of keys: one of them acts,
another one when that has ended, and none loses what is queued.
"""

from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.deadlines import until
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.moved_clock import DAY_MS, MovedBroker
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

BEHIND_DAYS = 12  # the nodes begin so long ago: Kafka's time cannot be moved, and the earlier one counts
MESSAGE = pika.BasicProperties(delivery_mode=2)


class Keeping(Nodes):
    def options(self, name: str, bootstrap: str = "") -> tuple[str, ...]:
        return (*super().options(name, bootstrap), "--keep-bodies", "2d", "--keys", str(self.directory / "keys"))

    def start(self, name: str, bootstrap: str = "", data: str = "") -> RunningBroker:
        node = MovedBroker(self.directory / (data or name), *self.options(name, bootstrap))
        self.running[name] = node
        return node

    @property
    def one(self) -> MovedBroker:
        node = next(iter(self.running.values()))
        assert isinstance(node, MovedBroker)
        return node

    def days(self) -> dict[str, dict[str, Any]]:
        """The days by name, from the node that knows. While the duty goes from node to node, none does."""
        found: dict[str, dict[str, Any]] = {}

        def known() -> bool:
            for node in self.running.values():
                with api_client(node) as client:
                    for each in client.get("/expired-bodies").json():
                        if each["day"] not in found or each["keys"]:
                            found[each["day"]] = each
            return bool(found)

        until(known, "no node knows a day")
        return found

    def next_day(self) -> None:
        before = max(self.days())
        self.one.pass_time(DAY_MS)
        until(lambda: max(self.days()) > before, "no node has seen the new day")


def test_b21_one_node_destroys_a_day_and_all_know(kafka: KafkaCluster, tmp_path: Path) -> None:
    (tmp_path / "moved").write_text(f"{-BEHIND_DAYS * DAY_MS} 0")
    with Keeping(tmp_path, kafka, timeout=3) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        first = max(nodes.days())
        with connect(north) as connection:
            channel = connection.channel()
            for queue in ("taken", "waits"):
                channel.queue_declare(queue, durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "taken", b"one", MESSAGE)
            channel.basic_publish("", "waits", b"two", MESSAGE)
        nodes.next_day()
        second = max(nodes.days())
        with connect(south) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", "taken", b"three", MESSAGE)
            for body in (b"one", b"three"):
                until(lambda: channel.queue_declare("taken", passive=True).method.message_count, "it did not come")
                assert channel.basic_get("taken", auto_ack=True)[2] == body
        for _ in range(3):
            nodes.next_day()
        until(lambda: nodes.days()[second]["state"] == "expired", "the second day stays")
        held = nodes.days()[first]
        assert (held["state"], [each["queue"] for each in held["queues"]]) == ("held", ["waits"])
        for node in (north, south):
            until(lambda node: second in expired(node), "a node has not read of it", node)
            with connect(node) as connection:
                channel = connection.channel()
                (_, properties, body) = past(channel, "taken", 2)[1]
                assert (body, properties.headers["x-expired-body"]) == (b"", second)
                assert past(channel, "taken", 1)[0][2] == b"one"
        with connect(south) as connection:
            assert connection.channel().basic_get("waits", auto_ack=True)[2] == b"two"
        nodes.stop("north")  # if it acted, the other one does now
        nodes.next_day()
        until(lambda: nodes.days()[first]["state"] == "expired", "the first day stays")
        nodes.digests()


def expired(node: RunningBroker) -> set[str]:
    with api_client(node) as client:
        return {each["day"] for each in client.get("/expired-bodies").json() if each["offset"] is not None}


def past(channel: Any, queue: str, count: int) -> list[Any]:
    channel.basic_qos(prefetch_count=10)
    found: list[Any] = []
    for each in channel.consume(queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=60):
        assert each[0] is not None, f"only {found}"
        channel.basic_ack(each[0].delivery_tag)
        found.append(each)
        if len(found) == count:
            break
    channel.cancel()
    return found
