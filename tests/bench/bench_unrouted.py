"""The cost of a publish that no queue takes, beside one that a queue takes.

    python -m tests.bench.bench_unrouted [PEER] [--messages 200000] [--rounds 3]

Messages of 1 kB, transient, without confirms, to a topic exchange: by turns with a key that a queue is bound with, and
with one that nobody is. Each figure is messages a second of the broker's CPU, up to the answer that the broker has
taken them all. Messages that differ in their bodies alone come as runs; `alone`: with a property that differs in each.
"""

import argparse
import socket
from collections.abc import Callable
from typing import Any

from tests.bench.peers import PEERS, Broker
from tests.support.amqp_wire import HANDSHAKE, method, properties, publish

TOGETHER = 500  # messages in one write
CLOSES = (b"\0\x0a\0\x32", b"\0\x14\0\x28")  # connection.close, channel.close
EXCHANGE, KEYS = "bench", ("bound", "nobody")


class Publisher:
    """A client that sends frames as they are."""

    def __init__(self, broker: Broker) -> None:
        self.sock = socket.create_connection(("127.0.0.1", broker.port), 600)
        self.reader = self.sock.makefile("rb")
        self.sock.sendall(HANDSHAKE + method(1, "Channel.Open"))
        self.wait_for("Channel.OpenOk")

    def ask(self, name: str, **fields: Any) -> None:
        """Send a method and wait for its answer: what was sent before is taken by then."""
        self.sock.sendall(method(1, name, **fields))
        self.wait_for(name + "Ok")

    def wait_for(self, name: str) -> None:
        """Read until the method comes."""
        wanted = method(1, name)[7:11]
        while True:
            head = self.reader.read(7)
            if len(head) < 7:
                raise EOFError(name)
            payload = self.reader.read(int.from_bytes(head[3:7], "big") + 1)
            if payload[:4] == wanted:
                return
            if payload[:4] in CLOSES:
                raise EOFError(f"{name}: {payload!r}")

    def publish(self, key: str, messages: int, raw: Callable[[int], bytes]) -> None:
        """Publish messages, and wait until the broker has taken them."""
        body = b"x" * 1_000
        for begin in range(0, messages, TOGETHER):
            numbers = range(begin, min(begin + TOGETHER, messages))
            self.sock.sendall(b"".join(publish(1, EXCHANGE, key, body, raw=raw(each)) for each in numbers))
        self.ask("Queue.Purge", queue="q")


def measured(peer: str, messages: int, rounds: int) -> dict[str, list[float]]:
    """Messages a second of the broker's CPU, by key and kind."""
    same = properties(delivery_mode=1)
    kinds: dict[str, Callable[[int], bytes]] = {
        "runs": lambda number: same,
        "alone": lambda number: properties(delivery_mode=1, message_id=str(number)),
    }
    found: dict[str, list[float]] = {}
    with PEERS[peer].fresh() as broker:
        publisher = Publisher(broker)
        publisher.ask("Exchange.Declare", exchange=EXCHANGE, exchange_type="topic", arguments={})
        publisher.ask("Queue.Declare", queue="q", arguments={})
        publisher.ask("Queue.Bind", queue="q", exchange=EXCHANGE, routing_key=KEYS[0], arguments={})
        for _ in range(rounds):
            for kind, raw in kinds.items():
                for key in KEYS:
                    before = broker.cpu_seconds()
                    publisher.publish(key, messages, raw)
                    spent = broker.cpu_seconds() - before
                    found.setdefault(f"{key}, {kind}", []).append(messages / spent)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", nargs="?", default="rewindmq", choices=PEERS)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for name, figures in measured(asked.peer, asked.messages, asked.rounds).items():
        print(f"{name:16} {' '.join(f'{each:10,.0f}' for each in figures)}")


if __name__ == "__main__":
    main()
