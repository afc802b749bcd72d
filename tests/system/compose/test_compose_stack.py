"""The stack as plain processes, for real: what is published on one node is consumed on the other, Spark audits it, and
when it is stopped nothing of it runs on."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pika
import pytest

from tests.support.kafka.cluster import START_SECONDS
from tests.support.kafka.fixtures import require_kafka
from tests.support.ports import free_ports
from tests.support.processes import tree_of
from tests.support.running import ROOT

pytestmark = pytest.mark.long

STACK = ROOT / "compose" / "stack.py"


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def channel_to(port: int) -> pika.adapters.blocking_connection.BlockingChannel:
    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
    channel.confirm_delivery()
    return channel


def stack(what: str, data: Path, *options: str) -> list[str]:
    return [sys.executable, str(STACK), what, "--data", str(data), *options]


def test_up_and_down(tmp_path: Path) -> None:
    require_kafka()
    amqp, http, kafka = (free_ports(count)[0] for count in (2, 2, 12))
    options = ("--amqp-port", str(amqp), "--http-port", str(http), "--kafka-port", str(kafka))
    process = subprocess.Popen(stack("up", tmp_path, *options), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = ""
        while "audit   " not in said:
            line = process.stdout.readline()
            assert line, f"it ended with {process.wait()}: {said}"
            said += line
        assert f"amqp://guest:guest@127.0.0.1:{amqp + 1}/" in said
        began = tree_of(process.pid)[1:]
        commands = {pid: command_of(pid) for pid in began}
        assert sum("kafka.Kafka" in each for each in commands.values()) == 3

        here, there = channel_to(amqp), channel_to(amqp + 1)
        here.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
        here.basic_publish("", "orders", b"order 1", pika.BasicProperties(delivery_mode=2))
        method, _, body = next(iter(there.consume("orders", inactivity_timeout=START_SECONDS)))
        assert (method is not None, body) == (True, b"order 1")
        there.basic_ack(method.delivery_tag)
        for channel in (here, there):
            channel.connection.close()

        reports = tmp_path / "audit" / "reports.jsonl"
        deadline = time.monotonic() + 3 * START_SECONDS  # Spark starts beside all that started before
        while not reports.exists() or not reports.read_text():
            assert time.monotonic() < deadline, (tmp_path / "spark.log").read_text()
            time.sleep(0.1)
        assert json.loads(reports.read_text().splitlines()[0])["violations"] == []
        second = subprocess.run(stack("up", tmp_path, *options), capture_output=True, text=True, timeout=60)
        assert (second.returncode, second.stderr.count("\n")) == (69, 1)
        assert "a stack runs there already" in second.stderr
    finally:
        subprocess.run(stack("stop", tmp_path), check=True, timeout=120)
    assert process.wait(30) == 0
    assert [commands[pid] for pid in began if command_of(pid) == commands[pid]] == []
    for name in ("rewindmq-1", "rewindmq-2"):
        assert "Traceback" not in (tmp_path / f"{name}.log").read_text()
