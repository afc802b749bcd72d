"""Measure the delays of an AMQP client while the management API is flooded, or large messages come and go.

    python -m tests.bench.bench_bystander [--queues 20000] [--seconds 10] [--clients 8] [--only get,listing]
    python -m tests.bench.bench_bystander --beside-rabbitmq [--rounds 3] [--seconds 10] [--clients 8]

The broker has many queues. One AMQP client publishes with confirms, one message at a time, alternately transient and
persistent. For each kind of flood, several processes repeat the same request over HTTP; `publish` and `deliver` are
messages of 50 MB over AMQP. The benchmark prints the time until a confirm (p50, p99, max; of persistent messages behind
the bar), the number of answers that the flood got, and the broker's CPU time for each answer, which includes that of
the client's publishes. A run without a flood comes first, for comparison: it shows the speed of the disk, and how busy
the machine is.

`--beside-rabbitmq` also runs the floods over AMQP at Debian's RabbitMQ, in turn, and prints ratios of the medians.
"""

import argparse
import contextlib
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import pika

from tests.bench.peers import PEERS, Broker

AUTH = ("guest", "guest")
LARGE, LARGE_MESSAGES = 50_000_000, 4
MANY_ARGUMENTS = 500_000
TRANSIENT, PERSISTENT = 1, 2  # delivery modes
OVER_AMQP = ("idle", "publish", "deliver")
COLUMNS = "     p50      p99      max |      p50      p99      max confirms   CPU ms   answers"
Ask = Callable[[httpx2.Client], httpx2.Response]


def declare_many_arguments(client: httpx2.Client) -> httpx2.Response:
    arguments = {f"a{number}": number for number in range(MANY_ARGUMENTS)}
    return client.put("/api/queues/%2F/arguments", content=json.dumps({"durable": True, "arguments": arguments}))


def get_large(client: httpx2.Client) -> httpx2.Response:
    wanted = {"count": 16, "ackmode": "ack_requeue_true", "encoding": "auto"}
    return client.post("/api/queues/%2F/large/get", json=wanted)


def import_definitions(client: httpx2.Client) -> httpx2.Response:
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


def definitions(queues: int, first: int = 0) -> bytes:
    """A document that declares so many queues, q0 and so on, or from another number on."""
    named = [
        {"name": f"q{n}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for n in range(first, first + queues)
    ]
    return json.dumps({"queues": named}).encode()


def flood_amqp(url: str, kind: str, seconds: float, ready: Any, told: Any) -> None:
    """`publish`: large messages, each confirmed, that no consumer takes. `deliver`: the same one again and again."""
    count = 0
    with pika.BlockingConnection(pika.URLParameters(url + "?heartbeat=0")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        arguments = {"x-max-length": 1}
        queue = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
        body = bytes(LARGE)
        channel.basic_publish("", queue, body)
        ready.wait()
        until = time.time() + seconds
        while time.time() < until:
            if kind == "publish":
                channel.basic_publish("", queue, body)
            else:
                method, _, got = channel.basic_get(queue)
                assert got == body
                channel.basic_nack(method.delivery_tag)
            count += 1
    told.put({kind: count})


def flood(url: str, kind: str, seconds: float, ready: Any, told: Any) -> None:
    ask = FLOODS[kind]
    assert ask is not None
    answers: Counter[str] = Counter()
    with httpx2.Client(base_url=url, auth=AUTH, timeout=120, trust_env=False) as client:
        ready.wait()
        until = time.time() + seconds
        while time.time() < until:
            try:
                answers[str(ask(client).status_code)] += 1
            except httpx2.HTTPError as error:
                answers[type(error).__name__] += 1
    told.put(dict(answers))


@dataclass(frozen=True, slots=True)
class Felt:
    """Milliseconds until the confirms of one run, sorted, and what the flood did meanwhile."""

    transient: list[float]
    persistent: list[float]
    cpu_ms: float
    answers: dict[str, int]

    def figures(self) -> dict[str, float]:
        found = {}
        for name, took in (("transient", self.transient), ("persistent", self.persistent)):
            found[f"{name} p50"] = took[len(took) // 2]
            found[f"{name} p99"] = took[len(took) * 99 // 100]
            found[f"{name} max"] = took[-1]
        return found

    def row(self) -> str:
        p50, p99, most, *of_persistent = (f"{each:>8.1f}" for each in self.figures().values())
        counted = f"{len(self.transient) + len(self.persistent):>8} {self.cpu_ms:>8.1f}"
        return f"{p50} {p99} {most} | {' '.join(of_persistent)} {counted}   {self.answers}"


def probe(channel: Any, until: float) -> tuple[list[float], list[float]]:
    """Milliseconds of each confirm: of transient messages, and of persistent ones."""
    took: tuple[list[float], list[float]] = ([], [])
    while time.time() < until:
        for mode in TRANSIENT, PERSISTENT:
            began = time.perf_counter()
            channel.basic_publish("", "probe", b"probe", pika.BasicProperties(delivery_mode=mode))
            took[mode - 1].append((time.perf_counter() - began) * 1000)
            time.sleep(0.002)
    return sorted(took[0]), sorted(took[1])


def run(broker: Broker, channel: Any, kind: str, seconds: float, clients: int) -> Felt:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    ready = context.Barrier(clients + 1)  # all have imported, and published what they need
    floods = []
    if kind != "idle":
        http = FLOODS[kind] is not None
        how, url = (flood, f"http://127.0.0.1:{broker.http_port}") if http else (flood_amqp, amqp_url(broker))
        floods = [context.Process(target=how, args=(url, kind, seconds, ready, told)) for _ in range(clients)]
        for each in floods:
            each.start()
        ready.wait()
        settled = pika.BasicProperties(delivery_mode=PERSISTENT)
        channel.basic_publish("", "probe", b"probe", settled)  # confirmed behind all that they published until now
    before = broker.cpu_seconds()
    transient, persistent = probe(channel, time.time() + seconds)
    answers: Counter[str] = Counter()
    for _ in floods:
        answers.update(told.get())
    for each in floods:
        each.join()
    cpu_ms = (broker.cpu_seconds() - before) * 1000 / max(1, sum(answers.values()))
    return Felt(transient, persistent, cpu_ms, dict(answers))


def amqp_url(broker: Broker) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}/"


@contextlib.contextmanager
def probed(broker: Broker) -> Iterator[Any]:
    """A channel in confirm mode that no heartbeat closes, and its queue."""
    with pika.BlockingConnection(pika.URLParameters(amqp_url(broker) + "?heartbeat=0")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("probe", durable=True)
        yield channel


def beside_http(home: Path, asked: argparse.Namespace) -> None:
    """All kinds of floods at RewindMQ alone."""
    with PEERS["rewindmq"].running(home) as broker, probed(broker) as channel:
        url = f"http://127.0.0.1:{broker.http_port}/api/definitions"
        httpx2.post(url, auth=AUTH, content=definitions(asked.queues), timeout=600)
        for queue in ("large", "small"):
            channel.queue_declare(queue, durable=True)
        for _ in range(LARGE_MESSAGES):
            channel.basic_publish("", "large", bytes(LARGE))
        for _ in range(1_000):
            channel.basic_publish("", "small", bytes(1_000))
        print(f"{asked.queues} queues, {asked.clients} clients; confirms in ms")
        print(f"{'flood':<12} {COLUMNS}")
        for kind in asked.only.split(",") if asked.only else FLOODS:
            channel.queue_purge("probe")
            print(f"{kind:<12} {run(broker, channel, kind, asked.seconds, asked.clients).row()}", flush=True)


def beside_rabbitmq(home: Path, asked: argparse.Namespace) -> None:
    """The floods over AMQP, at both brokers in turn. They run in their defaults, and one of them always has nothing to
    do."""
    names = ("rabbitmq", "rewindmq")
    with contextlib.ExitStack() as stack:
        brokers = {name: stack.enter_context(PEERS[name].running(home / name)) for name in names}
        channels = {name: stack.enter_context(probed(brokers[name])) for name in names}
        print(f"{asked.clients} clients; confirms in ms")
        print(f"{'flood':<12} {'broker':<16} {COLUMNS}")
        for kind in asked.only.split(",") if asked.only else OVER_AMQP:
            felt: dict[str, list[Felt]] = {name: [] for name in names}
            for turn in range(asked.rounds):
                for name in names if turn % 2 == 0 else reversed(names):
                    channels[name].queue_purge("probe")
                    felt[name].append(run(brokers[name], channels[name], kind, asked.seconds, asked.clients))
                    print(f"{kind:<12} {brokers[name].name:<16} {felt[name][-1].row()}", flush=True)
            print_ratios(kind, felt["rewindmq"], felt["rabbitmq"])


def print_ratios(kind: str, ours: list[Felt], theirs: list[Felt]) -> None:
    """The ratio of the medians over all rounds, for each figure, and of the flood's own work."""
    ratios = []
    for figure in ours[0].figures():
        mine, other = (median([each.figures()[figure] for each in side]) for side in (ours, theirs))
        ratios.append(f"{figure} {mine / other:.2f}")
    if kind != "idle":
        served = [median([sum(each.answers.values()) for each in side]) for side in (ours, theirs)]
        ratios.append(f"large messages {served[0] / served[1]:.2f}")
    print(f"{kind:<12} RewindMQ / RabbitMQ: {', '.join(ratios)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="at each broker, with --beside-rabbitmq")
    parser.add_argument("--only", help="kinds of floods, with commas between")
    parser.add_argument("--beside-rabbitmq", action="store_true", help="only the floods over AMQP, at both brokers")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        (beside_rabbitmq if asked.beside_rabbitmq else beside_http)(Path(home), asked)


if __name__ == "__main__":
    main()
