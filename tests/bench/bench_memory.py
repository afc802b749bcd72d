"""A million ready messages of 100 bytes: memory, publishing, restart and draining them: `make bench ROWS=million`.

One durable classic queue, persistent messages. Memory is the resident memory of the broker's process tree, 15 seconds
after its start, and 15 seconds after the last confirm. Restart: from the start of the process, after a clean stop, to
an answer that counts all of them.
"""

import time
from pathlib import Path

import pika

from tests.bench.peers import Broker, Peer
from tests.bench.perftest import perftest

MILLION = 1_000_000
SETTLING_SECONDS = 15  # a broker may give back what is free when it stands still


def million(peer: Peer, home: Path, messages: int = MILLION) -> dict[str, float]:
    """The figures of one peer. `messages`: fewer, to try it out."""
    settling = SETTLING_SECONDS * min(1.0, messages / MILLION)
    with peer.running(home) as broker:
        time.sleep(settling)
        idle = broker.rss_bytes()
        published = perftest(broker, ["-c", "1000", "-C", str(messages)], consumers=0, queue="million")
        time.sleep(settling)
        full = broker.rss_bytes()
        _check_ready(broker, messages)
    began = time.monotonic()
    with peer.running(home) as broker:
        _check_ready(broker, messages)
        restart = time.monotonic() - began
        drained = perftest(broker, ["-q", "200", "-D", str(messages)], producers=0, queue="million")
        _check_ready(broker, 0)
    return {
        "resident memory, idle, MB": idle / 1e6,
        "resident memory with them, MB": full / 1e6,
        "published with confirms (1,000 outstanding), a second": published.per_second,
        "published, a broker-CPU-second": published.per_cpu_second,
        "restart until they are counted, s": restart,
        "drained with acks (prefetch 200), a second": drained.per_second,
        "drained, a broker-CPU-second": drained.per_cpu_second,
    }


def _check_ready(broker: Broker, messages: int) -> None:
    """Raise RuntimeError unless the queue has so many ready messages. A broker may count the last acks later."""
    deadline = time.monotonic() + 5
    while (count := _ready(broker)) != messages:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{broker.name} counts {count:,} ready messages, not {messages:,}")
        time.sleep(0.05)


def _ready(broker: Broker) -> int:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        count: int = connection.channel().queue_declare("million", passive=True).method.message_count
        return count
