"""A trial: clients publish and consume through a fault, everything is drained, and the account is judged.

    trial = Trial(nodes, seed)
    await trial.run(fault, totals)    fault(trial): done while clients publish (confirms) and consume (manual acks)

`apart`: consumers are at one node, and publishers at the others. `line`: node `north` reaches Kafka by it, and it can
be cut.

The conditions are those of tests/system/durability/ledger.py and two more. A node delivers only durable messages, so a
message that comes a second time has the redelivered flag, also after a crash. All nodes and a plain fold of the topics
agree on the digest of every partition.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aio_pika
import httpx2

from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.schemas.events import Published
from tests.support.http_clients import api_client
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.proxy import Proxies
from tests.system.durability.ledger import Ledger
from tests.system.durability.load import ACCOUNTS, CONSUMED, QUEUES, TARGETS, Clients

DEADLINE_SECONDS = 120
PROGRESS = 400  # confirms, and acks, after which a load counts as going on


@dataclass
class Totals:
    """The sums over all trials of a test module."""

    trials: int = 0
    confirmed: int = 0
    lost: int = 0
    unknown: int = 0
    again: int = 0
    pauses: dict[str, list[float]] = field(default_factory=dict)  # by fault: the longest of each trial

    def __str__(self) -> str:
        said = (
            f"{self.trials} trials: {self.confirmed} confirmed, {self.lost} of them lost, {self.unknown} without an"
            f" answer, {self.again} deliveries again (flagged). The longest time without a confirm, s:"
        )
        pauses = (f"{name} {max(found):.1f} ({len(found)} trials)" for name, found in sorted(self.pauses.items()))
        return f"{said} {', '.join(pauses)}"


class Trial:
    """`accounts`, `consumed` and `targets` as in tests/system/durability/load.py, `program` what clients there are."""

    accounts = ACCOUNTS
    queues = QUEUES
    consumed = CONSUMED
    targets = TARGETS
    program = Clients

    def __init__(self, nodes: Nodes, seed: int, apart: bool = False, line: Proxies | None = None) -> None:
        self.nodes = nodes
        self.line = line
        self.ledger = Ledger(self.accounts)
        self.clients = self.program(self.ledger, seed, nodes=True, apart=apart)
        self.random = self.clients.random
        self.places = random.Random(seed)
        self.longest_pause = 0.0

    async def run(self, fault: Callable[["Trial"], Awaitable[None]], totals: Totals) -> None:
        await self.declare()
        clients = self.clients
        self.serve()
        tasks = [asyncio.create_task(clients.consumer(name)) for name in self.consumed]
        tasks += [
            asyncio.create_task(clients.publisher(number, exchange, key))
            for number, (exchange, key) in enumerate(self.targets)
        ]
        watch = asyncio.create_task(self.watch())
        living = asyncio.create_task(self.live(fault))
        try:
            await asyncio.wait([living, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    await task  # a client that ends has failed
            await living
            clients.publishing = False
            clients.orderly = True
            await self.drained()
        finally:
            clients.ended = True
            for task in (living, watch, *tasks):
                task.cancel()
            _, left = await asyncio.wait([living, watch, *tasks], timeout=30)
            for task in left:
                task.print_stack()
            assert not left, f"{len(left)} clients do not end"
        self.judge(fault.__name__, totals)
        await asyncio.to_thread(self.nodes.digests)
        self.judge_quarantined()
        self.nodes.check_errors()

    def judge_quarantined(self) -> None:
        """Only what a node sent before it read that it was lost may be skipped; and no publish, which counts."""
        kinds = self.nodes.quarantined_kinds()
        if kinds:
            print(f"  skipped so far: {dict(kinds)}")
        wrong = [kind for kind in kinds if f", {NODE_LOST}" not in kind or kind.startswith(Published.__name__)]
        assert not wrong, wrong

    async def live(self, fault: Callable[["Trial"], Awaitable[None]]) -> None:
        await self.progress()
        await fault(self)
        self.serve()
        await self.progress()

    def serve(self) -> None:
        """Connect clients to the nodes that run now."""
        self.clients.urls = [node.amqp_url for node in self.nodes.running.values()]
        if self.clients.apart:
            self.places.shuffle(self.clients.urls)

    async def declare(self) -> None:
        """Make the queues anew."""
        first = next(iter(self.nodes.running.values()))
        connection = await aio_pika.connect(first.amqp_url)
        channel = await connection.channel()
        for name in self.queues:
            await channel.queue_delete(name)
        await connection.close()
        await self.clients.declare(first.amqp_url)

    async def progress(self) -> None:
        """Wait until the load goes on: publishes are confirmed, and messages acked, in every account."""
        ledger = self.ledger
        before = {name: (len(each.expected), len(each.acked)) for name, each in ledger.queues.items()}
        least = PROGRESS // len(before)

        def going_on() -> bool:
            return all(
                len(each.expected) >= before[name][0] + least and len(each.acked) >= before[name][1] + least
                for name, each in ledger.queues.items()
            )

        await self.until(going_on, "the load does not go on")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}:\n  {self.ledger.summary()}{self.nodes.last_words()}"
            await asyncio.sleep(0.05)

    async def watch(self) -> None:
        """Note the longest time in which nothing was confirmed in one of the accounts, while it published."""
        seen: dict[str, tuple[int, float]] = {}
        while True:
            now = time.monotonic()
            for name, account in self.ledger.queues.items():
                count, since = seen.get(name, (-1, now))
                if len(account.expected) != count or not self.clients.publishing:
                    seen[name] = (len(account.expected), now)
                self.longest_pause = max(self.longest_pause, now - since)
            await asyncio.sleep(0.02)

    async def drained(self) -> None:
        """Wait until every confirmed message is acked, and the queues of every node are empty."""
        accounts = self.ledger.queues.values()
        await self.until(
            lambda: not any(account.expected - account.acked for account in accounts), "confirmed and not acked"
        )
        deadline = time.monotonic() + DEADLINE_SECONDS
        while left := await asyncio.to_thread(self.left):
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.1)

    def left(self) -> list[str]:
        """The messages still in queues or on their way to others, by any node."""
        found = []
        for name, node in self.nodes.running.items():
            try:
                with api_client(node) as client:
                    queues = client.get("/queues").raise_for_status().json()
            except httpx2.HTTPError as error:
                found.append(f"{name}: {error}")
                continue
            found += [f"{name}: {each['name']} {each['messages']}" for each in queues if each.get("messages")]
            if not {each["name"] for each in queues} >= self.queues.keys():
                found.append(f"{name}: not all queues are there")
        return found

    def judge(self, fault: str, totals: Totals) -> None:
        summary = f"{self.ledger.summary()}\n  longest pause {self.longest_pause:.1f} s"
        print(summary)
        accounts = self.ledger.queues.values()
        totals.trials += 1
        totals.confirmed += self.ledger.confirmed
        totals.lost += sum(len(account.expected - account.acked) for account in accounts)
        totals.unknown += self.ledger.unknown
        totals.again += sum(account.delivered.total() - len(account.delivered) for account in accounts)
        totals.pauses.setdefault(fault, []).append(self.longest_pause)
        wrong = self.ledger.judge()
        assert not wrong, "\n".join([*wrong, summary])


# -- faults -----------------------------------------------------------------------------------------------------------


async def kill_a_node(trial: Trial) -> None:
    """Kill a node, let the others miss it, and bring it back."""
    nodes = trial.nodes
    name = trial.random.choice(list(nodes.running))
    await asyncio.to_thread(nodes.kill, name)
    trial.serve()
    await trial.progress()
    await asyncio.to_thread(nodes.start, name)


async def kill_a_node_and_start_it_at_once(trial: Trial) -> None:
    nodes = trial.nodes
    name = trial.random.choice(list(nodes.running))
    await asyncio.to_thread(nodes.kill, name)
    await asyncio.to_thread(nodes.start, name)


async def kill_each_kafka_node(trial: Trial) -> None:
    """Kill Kafka's nodes one after another, each when the one before is in sync again."""
    kafka = trial.nodes.kafka
    for number in list(kafka.processes):
        await kill_a_kafka_node(trial, number)


async def kill_a_kafka_node(trial: Trial, number: int = 0) -> None:
    kafka = trial.nodes.kafka
    number = number or trial.random.choice(list(kafka.processes))
    await asyncio.to_thread(kafka.kill, number)
    await trial.progress()
    await asyncio.to_thread(kafka.start_node, number)
    await asyncio.to_thread(kafka.wait_in_sync)


async def restart_everything(trial: Trial) -> None:
    """Kill and start everything at once, as a power cut does."""
    nodes = trial.nodes
    names, numbers = list(nodes.running), list(nodes.kafka.processes)
    trial.clients.urls = []
    for name in names:
        nodes.kill(name)
    await asyncio.to_thread(nodes.kafka.stop)
    for number in numbers:
        await asyncio.to_thread(nodes.kafka.start_node, number, wait=False)
    await asyncio.to_thread(nodes.kafka.wait)
    for name in names:
        await asyncio.to_thread(nodes.start, name)


async def stand_still(trial: Trial) -> None:
    """Let a node stand still for longer than the others wait for it."""
    nodes = trial.nodes
    name = trial.random.choice(list(nodes.running))
    before = times_lost(nodes, name)
    nodes.pause(name)
    trial.clients.urls = [node.amqp_url for other, node in nodes.running.items() if other != name]
    await asyncio.sleep(nodes.timeout + 2)
    nodes.go_on(name)
    await trial.until(lambda: times_lost(nodes, name) > before, f"{name} was not declared lost")


async def cut_a_node_off(trial: Trial) -> None:
    """Take the line to Kafka away from node `north`, for longer than the others wait for it."""
    nodes, line = trial.nodes, trial.line
    assert line is not None
    before = times_lost(nodes, "north")
    line.blackhole()
    trial.clients.urls = [node.amqp_url for other, node in nodes.running.items() if other != "north"]
    try:
        await asyncio.sleep(nodes.timeout + 4)
    finally:
        line.resume()
    await trial.until(lambda: times_lost(nodes, "north") > before, "north was not declared lost")


def times_lost(nodes: Nodes, name: str) -> int:
    """Return the number of times that the running node has read that it was declared lost."""
    return sum("was declared lost" in line for line in nodes.running[name].errors)


async def restart_kafka(trial: Trial) -> None:
    """Take all of Kafka away for longer than nodes wait for each other: no node could have been heard."""
    kafka = trial.nodes.kafka
    numbers = list(kafka.processes)
    await asyncio.to_thread(kafka.stop)
    await asyncio.sleep(trial.nodes.timeout)
    for number in numbers:
        await asyncio.to_thread(kafka.start_node, number, wait=False)
    await asyncio.to_thread(kafka.wait)
    await trial.progress()
    await asyncio.to_thread(kafka.wait_in_sync)


async def slow_kafka(trial: Trial) -> None:
    """Let Kafka's nodes answer in pulses, one after another, as nodes with a slow disk do.

    Each stands still for most of some seconds."""
    kafka = trial.nodes.kafka
    for number in list(kafka.processes):
        for _ in range(4):
            kafka.pause(number)
            await asyncio.sleep(trial.random.uniform(0.1, 0.8))
            kafka.go_on(number)
            await asyncio.sleep(0.1)
    await asyncio.to_thread(kafka.wait_in_sync)
