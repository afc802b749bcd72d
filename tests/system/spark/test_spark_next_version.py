"""B-73. Spark of the next version reads a history of both machine versions. Spark of this one refuses it in a line."""

import json
import subprocess
import sys
from pathlib import Path

import httpx2
import pika

from tests.support.next_version import NEXT, NextVersion
from tests.support.running import ROOT, RunningBroker


def live(broker: RunningBroker) -> None:
    """Publish, take and purge."""
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments={"x-expires": 3_600_000})
        channel.confirm_delivery()
        for number in range(20):
            channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        for _ in range(5):
            channel.basic_get("orders", auto_ack=True)
        channel.queue_purge("orders")
        channel.basic_publish("", "orders", b"last", pika.BasicProperties(delivery_mode=2))


def test_b73_spark_folds_and_audits_a_history_of_two_versions(tmp_path: Path) -> None:
    following, data = NextVersion.made(tmp_path / "next"), tmp_path / "data"
    for program in (RunningBroker, following.broker):
        broker = program(data)
        live(broker)
        assert broker.stop() == 0
    broker = following.broker(data)
    with httpx2.Client(base_url=broker.http_url, auth=("guest", "guest"), trust_env=False) as client:
        assert client.post("/api/upgrade/finalize").json()["after"] == NEXT
        purged = client.delete("/api/queues/%2F/orders/contents", params={"note": "a bad batch"})
        assert (purged.status_code, purged.headers["x-messages-purged"]) == (204, "1")
    live(broker)
    assert broker.stop() == 0

    audited = following.run("-m", "rewindmq", "spark", "audit", "--data", str(data))
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert audited.stdout.endswith("audit passed\n"), audited.stdout
    state = following.run("-m", "rewindmq", "spark", "state-at", "--data", str(data), "--format", "json")
    assert state.returncode == 0, state.stderr
    [queue] = json.loads(state.stdout)
    assert (queue["queue"], queue["messages_ready"]) == ("orders", 1)
    command = [sys.executable, "-m", "rewindmq", "spark", "audit", "--data", str(data)]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode not in (0, 1)
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
    assert "newer" in refused.stderr
