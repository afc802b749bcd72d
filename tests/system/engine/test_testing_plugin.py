"""rewindmq.testing, as a project would use it: its tests run in a process of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.running import ROOT

FAILING = """
import pika

pytest_plugins = ["rewindmq.testing"]


def test_an_order_is_lost(rewindmq) -> None:
    with pika.BlockingConnection(pika.URLParameters(rewindmq.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments={"x-max-length": 1})
        channel.confirm_delivery()
        for n in range(2):
            channel.basic_publish("", "orders", b"order", pika.BasicProperties(delivery_mode=2))
    rewindmq.wait_for("orders", "acked", seconds=0.1)


def test_another_one_has_a_virtual_host_of_its_own(rewindmq) -> None:
    assert rewindmq.queues() == []
    assert rewindmq.history("orders") == []
"""


def run_pytest(directory: Path, file: str) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        file,
    ]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)


def test_the_example_passes(tmp_path: Path) -> None:
    for name in ("service.py", "test_service.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    done = run_pytest(tmp_path, "test_service.py")
    assert "2 passed" in done.stdout, done.stdout


def test_a_failed_test_shows_what_happened_to_its_messages(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    done = run_pytest(tmp_path, "test_failing.py")
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "queue orders: 0 messages are acked after 0.1 s, not 1" in done.stdout
    assert "RewindMQ: what happened to the messages" in done.stdout
    life = done.stdout.partition("queue orders: 2 messages\n")[2].splitlines()
    assert life[0].startswith("  message queues-")
    assert life[1].endswith("published  (user guest)")
    assert "maxlen  (" in life[2]
