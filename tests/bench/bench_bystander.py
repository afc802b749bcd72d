"""What an AMQP client feels while the management API is flooded, or large messages come and go.

    python -m tests.bench.bench_bystander [--queues 20000] [--seconds 10] [--clients 8] [--only get,listing]

A broker with many queues; one AMQP client that publishes with confirms, one message at a time; and, for each kind of
flood, some processes that ask the same over HTTP again and again; `publish` and `deliver` are messages of 50 MB over
AMQP. Prints how long a confirm took (p50, p99, max), how many answers the flood got, and the broker's CPU time for each
answer (that of the probe's publishes is among it). Idle comes first, for comparison: how fast the disk is, and how busy
the machine.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pika

from tests.support.running import RunningBroker

AUTH = ("guest", "guest")
LARGE, LARGE_MESSAGES = 50_000_000, 4
MANY_ARGUMENTS = 500_000
Ask = Callable[[httpx.Client], httpx.Response]


def declare_many_arguments(client: httpx.Client) -> httpx.Response:
    arguments = {f"a{number}": number for number in range(MANY_ARGUMENTS)}
    return client.put("/api/queues/%2F/arguments", content=json.dumps({"arguments": arguments}))


def get_large(client: httpx.Client) -> httpx.Response:
    wanted = {"count": 16, "ackmode": "ack_requeue_true", "encoding": "auto"}
    return client.post("/api/queues/%2F/large/get", json=wanted)


def import_definitions(client: httpx.Client) -> httpx.Response:
    return client.post("/api/definitions", content=definitions(20_000))


FLOODS: dict[str, Ask | None] = {
    "idle": None,
    "whoami": lambda client: client.get("/api/whoami"),
    "listing": lambda client: client.get("/api/queues"),
    "page": lambda client: client.get("/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true&name=7"),
    "columns": lambda client: client.get("/api/queues?columns=name,messages"),
    "bindings": lambda client: client.get("/api/bindings"),
    "overview": lambda client: client.get("/api/overview"),
    "export": lambda client: client.get("/api/definitions"),
    "import": import_definitions,
    "arguments": declare_many_arguments,
    "get": get_large,
    "at": lambda client: client.get("/api/queues/%2F/small/at?offset=1000000000&count=10000"),
    "metrics": lambda client: client.get("/metrics"),
    "per-object": lambda client: client.get("/metrics/per-object"),
    "publish": None,
    "deliver": None,
}


def definitions(queues: int) -> bytes:
    named = [
        {"name": f"q{n}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}} for n in range(queues)
    ]
    return json.dumps({"queues": named}).encode()


def flood_amqp(url: str, kind: str, until: float, told: Any) -> None:
    """`publish`: large messages, each confirmed, that no consumer takes. `deliver`: the same one again and again."""
    count = 0
    with pika.BlockingConnection(pika.URLParameters(url + "?heartbeat=0")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        arguments = {"x-max-length": 1}
        queue = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
        body = bytes(LARGE)
        channel.basic_publish("", queue, body)
        while time.time() < until:
            if kind == "publish":
                channel.basic_publish("", queue, body)
            else:
                method, _, got = channel.basic_get(queue)
                assert got == body
                channel.basic_nack(method.delivery_tag)
            count += 1
    told.put({kind: count})


def flood(url: str, kind: str, until: float, told: Any) -> None:
    ask = FLOODS[kind]
    assert ask is not None
    answers: Counter[str] = Counter()
    with httpx.Client(base_url=url, auth=AUTH, timeout=120, trust_env=False) as client:
        while time.time() < until:
            try:
                answers[str(ask(client).status_code)] += 1
            except httpx.HTTPError as error:
                answers[type(error).__name__] += 1
    told.put(dict(answers))


def probe(channel: Any, until: float) -> list[float]:
    """Milliseconds of each confirm."""
    took = []
    while time.time() < until:
        began = time.perf_counter()
        channel.basic_publish("", "probe", b"probe")
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.002)
    return sorted(took)


def run(broker: RunningBroker, channel: Any, kind: str, seconds: float, clients: int) -> str:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    floods = []
    before = cpu_seconds(broker)
    if kind != "idle":
        until = time.time() + seconds + 2
        http = FLOODS[kind] is not None
        how, url = (flood, broker.http_url) if http else (flood_amqp, broker.amqp_url)
        floods = [context.Process(target=how, args=(url, kind, until, told)) for _ in range(clients)]
        for each in floods:
            each.start()
        time.sleep(2)  # they import
    took = probe(channel, time.time() + seconds)
    answers: Counter[str] = Counter()
    for _ in floods:
        answers.update(told.get())
    for each in floods:
        each.join()
    cpu_ms = (cpu_seconds(broker) - before) * 1000 / max(1, sum(answers.values()))
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    return f"{kind:<12} {p50:>8.1f} {p99:>8.1f} {took[-1]:>8.1f} {len(took):>8} {cpu_ms:>8.1f}   {dict(answers)}"


def cpu_seconds(broker: RunningBroker) -> float:
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--only", default=",".join(FLOODS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        broker = RunningBroker(Path(home) / "data", "--host", "127.0.0.1")
        httpx.post(f"{broker.http_url}/api/definitions", auth=AUTH, content=definitions(asked.queues), timeout=600)
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url + "?heartbeat=0"))
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in ("probe", "large", "small"):
            channel.queue_declare(queue, durable=True)
        for _ in range(LARGE_MESSAGES):
            channel.basic_publish("", "large", bytes(LARGE))
        for _ in range(1_000):
            channel.basic_publish("", "small", bytes(1_000))
        print(f"{asked.queues} queues, {asked.clients} clients; confirms in ms")
        print(f"{'flood':<12} {'p50':>8} {'p99':>8} {'max':>8} {'confirms':>8} {'CPU ms':>8}   answers")
        for kind in asked.only.split(","):
            channel.queue_purge("probe")
            print(run(broker, channel, kind, asked.seconds, asked.clients), flush=True)
        connection.close()
        broker.stop()


if __name__ == "__main__":
    main()
