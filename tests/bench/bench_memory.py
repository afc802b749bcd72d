"""A million ready messages of 100 bytes: resident memory above the idle process, restart, and draining them.

RewindMQ and Debian's RabbitMQ (classic queue) in one run. Restart: from the start of the process, after a clean stop,
to an answer that counts all of them.

    python -m tests.bench.bench_memory [--messages 1000000]
"""

import argparse
import tempfile
import time
from pathlib import Path

import pika

from tests.bench.peers import Broker, running
from tests.bench.perftest import perftest


def ready(broker: Broker, queue: str) -> int:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
        return count


def measure(name: str, home: Path, messages: int) -> None:
    with running(name, home) as broker:
        time.sleep(2)
        idle = broker.rss_bytes()
        perftest(broker, ["-c", "1000", "-C", str(messages)], consumers=0, queue="million")
        time.sleep(15)  # a broker may give back what is free when it stands still
        full = broker.rss_bytes()
        assert ready(broker, "million") == messages
    print(
        f"{messages:,} ready messages   {broker.name:18} idle {idle / 1e6:7.1f} MB, with them {full / 1e6:7.1f} MB "
        f"({(full - idle) / 1e6:+.1f} MB)",
        flush=True,
    )
    began = time.monotonic()
    with running(name, home) as broker:
        assert ready(broker, "million") == messages
        seconds = time.monotonic() - began
        rss = broker.rss_bytes() / 1e6
        print(f"restart with them          {broker.name:18} {seconds:.2f} s, {rss:.1f} MB", flush=True)
        cpu, began = broker.cpu_seconds(), time.monotonic()
        perftest(broker, ["-q", "200", "-D", str(messages)], producers=0, queue="million")
        cpu, seconds = broker.cpu_seconds() - cpu, time.monotonic() - began
        print(
            f"draining them with acks    {broker.name:18} {messages / seconds:,.0f} a second, "
            f"{messages / cpu:,.0f} a CPU second",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    arguments = parser.parse_args()
    for name in ("rabbitmq", "rewindmq"):
        with tempfile.TemporaryDirectory() as tmp:
            measure(name, Path(tmp), arguments.messages)


if __name__ == "__main__":
    main()
