"""Erasure on nodes that share a log and a directory of keys (B-15): what one erases no other can read."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pika
import pytest

from rewindmq.engine.cli import main
from rewindmq.engine.erasure.key_store import KeyStore
from tests.support.deadlines import until
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

MARKER = b"PLAIN-BODY-OF-ADA"
ADA = pika.BasicProperties(delivery_mode=2, headers={"x-subject": "ada"})


class Sharing(Nodes):
    def options(self, name: str, bootstrap: str = "") -> tuple[str, ...]:
        return (
            *super().options(name, bootstrap),
            "--subject-header",
            "x-subject",
            "--keys",
            str(self.directory / "keys"),
        )


def bodies(node: RunningBroker) -> list[tuple[bytes, Any]]:
    """Of what is in the queue, which stays there; and their header x-erased."""
    got = []
    with connect(node) as connection:
        channel = connection.channel()
        while (each := channel.basic_get("q"))[0] is not None:
            got.append((each[2], each[1].headers.get("x-erased")))
    return got


def test_b15_what_one_node_erases_no_other_can_read(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Sharing(tmp_path, kafka, timeout=30) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        with connect(north) as one, connect(south) as other:
            channels = [one.channel(), other.channel()]
            channels[0].queue_declare("q", durable=True)
            channels[0].queue_declare("nobodys", durable=True)
            for channel in channels:
                channel.confirm_delivery()
            until(lambda: api_client(south).get("/queues/%2F/q").status_code == 200, "south does not know the queue")
            for channel in channels:  # both make the key, or find it
                channel.basic_publish("", "q", MARKER, ADA)
        assert len(KeyStore(tmp_path / "keys").known("ada")) == 1
        for node in (north, south):
            until(lambda node: len(bodies(node)) == 2, "they are not all back", node)
            assert bodies(node) == [(MARKER, None)] * 2  # both have the key at hand now
        with api_client(south) as client, connect(north) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            assert client.delete("/subjects/ada", params={"reason": "asked for"}).status_code == 204
            channel.basic_publish("", "q", b"at once", ADA)  # though north has the old key at hand
            until(lambda: len(bodies(south)) == 3, "it did not come")
            assert bodies(south) == [(b"", True)] * 2 + [(b"at once", None)]
        with api_client(north) as client:
            until(lambda: client.get("/erasures").json(), "north has not read of it")
            (told,) = client.get("/erasures").json()
            assert (told["subject"], told["user"], told["reason"]) == ("ada", "guest", "asked for")
            until(lambda: len(bodies(north)) == 3, "they are not all back")
            assert bodies(north) == [(b"", True)] * 2 + [(b"at once", None)]
            page = client.get("/queues/%2F/q/at", params={"offset": end_of(client)}).json()
            assert [each["payload"] for each in page["message_details"]] == ["", "", "at once"]
        with connect(north) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"she is back", ADA)
            channel.basic_publish("", "nobodys", b"NOBODYS-BODY")
        until(lambda: len(bodies(south)) == 4, "it did not come")
        assert bodies(south) == [(b"", True)] * 2 + [(b"at once", None), (b"she is back", None)]
        nodes.digests()
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main.run(
                [
                    "check_erasure",
                    "ada",
                    "--kafka",
                    kafka.bootstrap,
                    "--kafka-prefix",
                    nodes.prefix,
                    "--keys",
                    str(tmp_path / "keys"),
                    "-q",
                    "--no-table-headers",
                ]
            )
        assert code == 0
        told = [line.split("\t") for line in out.getvalue().splitlines()]
        assert [(each[1], each[3]) for each in told] == [("2", "destroyed"), ("2", "in_use")]
    files = [path for path in (*tmp_path.rglob("*"), *kafka.directory.rglob("*.log")) if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert MARKER not in written
    assert b"NOBODYS-BODY" in written, "what is not encrypted would have been found"


def end_of(client: Any) -> int:
    partition = client.get("/queues/%2F/q").json()["partition"]
    (log,) = [each for each in client.get("/overview").json()["log"] if each["partition"] == partition]
    return int(log["durable_offset"])
