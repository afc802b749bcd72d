"""A queue of numbered messages in a broker, and the verification of its directory."""

import subprocess
import sys
from pathlib import Path

import pika

from tests.support.pika_clients import numbered, publish_confirmed
from tests.support.running import ROOT, RunningBroker


def publish(broker: RunningBroker, first: int, count: int) -> None:
    """Publish numbers, each confirmed: a block of the log each."""
    publish_confirmed(broker, "kept", numbered(range(first, first + count)))


def consume(broker: RunningBroker) -> list[int]:
    """Return the numbers that are in the queue."""
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        got = []
        for _ in range(channel.queue_declare("kept", passive=True).method.message_count):
            got.append(int(channel.basic_get("kept", auto_ack=False)[2]))
        return got


def verify(data: Path) -> subprocess.CompletedProcess[str]:
    """Run `rewindmq verify` on a data directory."""
    command = [str(Path(sys.executable).with_name("rewindmq")), "verify", "--data", str(data)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
