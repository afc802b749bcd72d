"""Measure the cost of `--find-index`: a broker without it and one with it, in turn, get the same messages with ids.

    python -m tests.bench.bench_find_index [--messages 100000] [--rounds 3]

Prints messages a second, the CPU time for each message of the broker's own process and of the process beside it, the
bytes of the index for each message, and the time that a search by id took. Each message has a message id and a
correlation id; a search is one of the command line's requests, over HTTP.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx2
import pika

from tests.support.processes import children_of, cpu_seconds_of
from tests.support.running import RunningBroker

SECONDS = 120


def publish(port: int, messages: int) -> float:
    """Messages a second."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        begun = time.perf_counter()
        for number in range(messages):
            ids = pika.BasicProperties(message_id=f"order-{number}", correlation_id=f"call-{number}", delivery_mode=2)
            channel.basic_publish("", "orders", b"x" * 100, ids)
        channel.queue_declare("orders", passive=True)  # all were received
        return messages / (time.perf_counter() - begun)


def found(broker: RunningBroker) -> tuple[int, float]:
    """Records that a search for an id read, and its seconds."""
    query, read, seconds = {"message_id": "order-1"}, 0, 0.0
    while True:
        begun = time.perf_counter()
        url = f"{broker.http_url}/api/history/find/%2F/orders"
        answer = httpx2.get(url, params=query, auth=("guest", "guest"), timeout=SECONDS).json()
        read, seconds = read + answer["read"], seconds + time.perf_counter() - begun
        if answer["next"] is None:
            return read, seconds
        query["next"] = answer["next"]


def measured(messages: int, *options: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        broker = RunningBroker(Path(place) / "data", *options)
        time.sleep(2)
        cpu = broker.cpu_seconds()
        rate = publish(broker.amqp_port, messages)
        cpu = broker.cpu_seconds() - cpu
        processes = children_of(broker.process.pid)
        deadline = time.monotonic() + SECONDS
        while options and found(broker)[0] > 1 and time.monotonic() < deadline:
            time.sleep(1)
        index_cpu = sum(map(cpu_seconds_of, processes)) if options else 0.0
        _, seconds = found(broker)
        broker.stop()
        size = sum(path.stat().st_size for path in (Path(place) / "data" / "find-index").glob("*.sst"))
    of_each = 1e6 / messages
    figures = {"rate": rate, "broker_us": cpu * of_each, "index_us": index_cpu * of_each}
    return figures | {"bytes": size / messages, "find_ms": seconds * 1_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for _ in range(given.rounds):
        rounds["without"].append(measured(given.messages))
        rounds["with"].append(measured(given.messages, "--find-index", "7d"))
    for name, figures in rounds.items():
        each = {key: median(one[key] for one in figures) for key in figures[0]}
        print(
            f"{name:8} {each['rate']:8,.0f} messages/s  broker {each['broker_us']:6.1f} us  index"
            f" {each['index_us']:6.1f} us  {each['bytes']:5.1f} bytes a message  find {each['find_ms']:7.0f} ms"
        )


if __name__ == "__main__":
    main()
