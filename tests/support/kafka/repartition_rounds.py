"""Rounds of repartitions under load, with faults: queues of all kinds move, some of them several times.

    python -m tests.support.kafka.repartition_rounds 0 20 [--standbys 0]     seeds 0 to 19; the first that fails ends it

Each round has nodes and a prefix of its own. Partitions are added again and again: 2, 3, 5, 8. Each time the nodes are
started again, one after the other, and then a fault comes while queues move. Beside the load, one client each deletes
names and declares them anew, purges, sets policies, and makes and deletes vhosts. After the round the account of
faults.py is judged, and what lay in queues has to be there once, in order. About a minute a round.
"""

import argparse
import asyncio
import itertools
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
import pika
from aio_pika.abc import AbstractChannel, AbstractExchange
from aiormq.abc import DeliveredMessage
from pamqp.common import FieldTable

from tests.support.http_clients import api_client
from tests.support.kafka.cluster import FAST, KafkaCluster
from tests.support.kafka.faults import Totals, Trial
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.pausing_nodes import PausingNode
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker
from tests.system.durability import load
from tests.system.durability.ledger import Message, decode, encode
from tests.system.durability.load import Clients, Consuming, until_gone

COUNTS = (3, 5, 8)
NAMES = ("north", "south", "west")
STORED = [f"stored-{number}" for number in range(60)]
MESSAGES = 100
PERSISTENT = aio_pika.DeliveryMode.PERSISTENT
LATER = "later-exchange"
LARGE = 1 << 20  # bytes of a message to `large`
WAIT_SECONDS = 60  # a side client that waits longer for one answer has found a name that is held for ever

QUEUES: dict[str, FieldTable] = {
    **load.QUEUES,
    "priority": {"x-max-priority": 5},
    "limited": {
        "x-queue-type": "quorum",
        "x-delivery-limit": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    },
    "dead": {"x-queue-type": "quorum"},
    "single": {"x-single-active-consumer": True},
    "full": {"x-max-length": 100, "x-overflow": "reject-publish"},
    "later": {},
    "large": {},
    "transacted": {},
    "alone": {},
}
TARGETS = {
    **load.TARGETS,
    ("", "priority"): ["priority"],
    ("", "limited"): ["limited"],
    ("", "single"): ["single"],
    ("", "full"): ["full"],
    (LATER, "later"): ["later"],
    ("", "large"): ["large"],
    ("", "transacted"): ["transacted"],
    ("", "alone"): ["alone"],
}
CONSUMED = [
    *load.CONSUMED,
    "priority",
    "limited",
    "dead",
    "single",
    "single",
    "full",
    "later",
    "large",
    "transacted",
    "alone",
]
ACCOUNTS = [name for name in QUEUES if name not in ("aging", "dead")]
ACCOUNT_OF = {"dead": "limited"}


class Taking(Consuming):
    """A consumer of these queues."""

    def __init__(self, clients: Clients, name: str, channel: AbstractChannel) -> None:
        super().__init__(clients, name, channel)
        self.prefetch = clients.random.choice([1, 10, 1000])

    async def run(self) -> None:
        await self.channel.set_qos(prefetch_count=self.prefetch)
        own = await self.channel.declare_queue(exclusive=True)
        queue = await self.channel.get_queue(self.name, ensure=False)
        await queue.consume(self.taken, exclusive=self.name == "alone")
        while not self.clients.ended:
            await asyncio.sleep(0.1)
            await own.purge()  # fails when the connection has ended
            while self.clients.orderly and self.kept:
                first = self.kept.pop()
                await self.ack(first, decode(first.body))


class Letters(Taking):
    """A consumer of dead letters: the messages came once before."""

    async def take(self, incoming: Any) -> None:
        message = decode(incoming.body)
        self.account.delivered[message] += 1
        await self.ack(incoming, message)


class AllKinds(Clients):
    targets = TARGETS
    batch = 10

    async def declare(self, url: str) -> None:
        async with self.connected(url) as channel:
            for name, arguments in QUEUES.items():
                await channel.declare_queue(name, durable=True, arguments=arguments)
            both = await channel.declare_exchange("both", aio_pika.ExchangeType.FANOUT, durable=True)
            for name in ("left", "right"):
                await (await channel.get_queue(name, ensure=False)).bind(both)
            later = await channel.declare_exchange(
                LATER, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
            )
            await (await channel.get_queue("later", ensure=False)).bind(later, "later")

    async def publisher(self, number: int, exchange: str, key: str) -> None:
        if key == "transacted":
            await self.again_and_again(True, self.transactions, confirms=False)
        else:
            await super().publisher(number, exchange, key)

    async def transactions(self, channel: AbstractChannel) -> None:
        number = next(self.publishers)
        while self.publishing:
            messages: list[Message] = []
            transaction = channel.transaction()
            try:
                await transaction.select()
                for _ in range(self.batch):
                    self.sequence += 1
                    messages.append((number, self.sequence))
                    self.ledger.published(["transacted"], messages[-1])
                    body = aio_pika.Message(encode(messages[-1]), delivery_mode=PERSISTENT)
                    await channel.default_exchange.publish(body, "transacted")
                await transaction.commit()
            except RuntimeError as error:  # what the library throws when its channel has been closed
                raise OSError(str(error)) from None
            for message in messages:
                self.ledger.confirm(["transacted"], message)
        while not self.ended:
            await asyncio.sleep(0.1)

    async def publish(self, exchange: AbstractExchange, key: str, accounts: list[str], number: int) -> None:
        self.sequence += 1
        message: Message = (number, self.sequence)
        body = encode(message)
        if key == "large" and self.random.random() < 0.03:
            body = body.ljust(LARGE)
        headers: FieldTable = {"x-delay": 100} if key == "later" else {}
        self.ledger.published(accounts, message)
        wish = aio_pika.Message(body, delivery_mode=PERSISTENT, priority=number % 6, headers=headers)
        try:
            answer = await exchange.publish(wish, key)
        except aio_pika.exceptions.DeliveryError:  # refused: the queue is full
            if key not in ("full", "limited"):
                raise
            return
        except BaseException:
            self.ledger.unknown += 1
            raise
        assert not isinstance(answer, DeliveredMessage), f"{key}: a message was returned"
        self.ledger.confirm(accounts, message)

    async def consumer(self, name: str) -> None:
        async def work(channel: AbstractChannel) -> None:
            await (Letters if name == "dead" else Taking)(self, name, channel).run()

        await self.again_and_again(False, work)


class AllQueues(Trial):
    accounts = ACCOUNTS
    queues = QUEUES
    consumed = CONSUMED
    targets = TARGETS
    program = AllKinds

    def __init__(self, nodes: Nodes, seed: int) -> None:
        super().__init__(nodes, seed)
        for name, account in ACCOUNT_OF.items():
            self.ledger.queues[name] = self.ledger.queues[account]
        self.longest: dict[str, float] = {}  # by kind of side client: the longest answer, s
        self.steps: dict[str, int] = {}
        self.wrong: list[str] = []
        self.moved = False  # the last repartition is done: side clients end

    # -- beside the load ----------------------------------------------------------------------------------------------

    async def beside(self, kind: str, step: Callable[[int], Awaitable[None]]) -> None:
        """Do something again and again, and note how long it took."""
        for number in itertools.count():
            if self.moved or self.clients.ended:
                return
            began = time.monotonic()
            try:
                with until_gone():
                    async with asyncio.timeout(WAIT_SECONDS):
                        await step(number)
                    self.steps[kind] = self.steps.get(kind, 0) + 1
            except TimeoutError:
                self.wrong.append(f"{kind} {number}: no answer in {WAIT_SECONDS} s")
            except httpx2.HTTPError:
                pass
            took = time.monotonic() - began
            self.longest[kind] = max(self.longest.get(kind, 0), took)
            if took > WAIT_SECONDS - 5:
                self.wrong.append(f"{kind} {number}: {took:.0f} s")
            await asyncio.sleep(0.02)

    def url(self) -> str:
        if not self.clients.urls:
            raise OSError("no node")
        return self.random.choice(self.clients.urls)

    async def anew(self, number: int) -> None:
        """Delete queues and declare them anew, publish and get, under names that come again."""
        async with self.clients.connected(self.url()) as channel:
            name = f"anew-{number % 7}"
            await channel.queue_delete(name)
            queue = await channel.declare_queue(name, durable=True)
            for each in range(3):
                await channel.default_exchange.publish(aio_pika.Message(f"{number}.{each}".encode()), name)
            found = []
            for _ in range(3):
                message = await queue.get(fail=False, no_ack=True)
                found.append(None if message is None else message.body.decode())
            if found != [f"{number}.{each}" for each in range(3)]:
                self.wrong.append(f"{name} {number} had {found}")

    async def purge(self, number: int) -> None:
        async with self.clients.connected(self.url()) as channel:
            queue = await channel.declare_queue(f"bin-{number % 5}", durable=True)
            for each in range(5):
                await channel.default_exchange.publish(aio_pika.Message(f"{number}.{each}".encode()), queue.name)
            purged = await queue.purge()
            if purged.message_count is None or purged.message_count < 5:  # more: a step before was cut short
                self.wrong.append(f"bin-{number % 5} {number}: {purged.message_count} purged of 5")

    def http(self) -> httpx2.AsyncClient:
        nodes = [node for node in self.nodes.running.values() if node.amqp_url in self.clients.urls]
        if not nodes:
            raise OSError("no node")
        node = self.random.choice(nodes)
        return httpx2.AsyncClient(
            base_url=f"{node.http_url}/api", auth=("guest", "guest"), trust_env=False, timeout=WAIT_SECONDS
        )

    async def policies(self, number: int) -> None:
        async with self.http() as client:
            name = f"/policies/%2F/p{number % 3}"
            wish = {
                "pattern": "^(stored|bin|anew)-",
                "definition": {"max-length": 100_000 + number},
                "apply-to": "queues",
            }
            self.answered(await client.put(name, json=wish))
            self.answered(await client.get("/queues"))
            if number % 2:
                self.answered(await client.delete(name))

    async def vhosts(self, number: int) -> None:
        async with self.http() as client:
            name = f"/vhosts/side-{number}"
            self.answered(await client.put(name))
            for each in range(6):
                self.answered(await client.put(f"/queues/side-{number}/q{each}", json={"durable": True}))
            await asyncio.sleep(self.random.random())
            self.answered(await client.delete(name))

    def answered(self, answer: httpx2.Response) -> None:
        if answer.status_code >= 500 and answer.status_code != 503:
            self.wrong.append(f"{answer.request.url}: {answer.status_code} {answer.text}")

    async def drained(self) -> None:
        await super().drained()
        await self.until(lambda: self.state()["left"] == 0, "what is left of queues stays for ever")

    # -- the course ---------------------------------------------------------------------------------------------------

    async def repartitions(self) -> None:
        """Add partitions again and again; a fault each time."""
        sides = [
            asyncio.create_task(self.beside(step.__name__, step))
            for step in (self.anew, self.purge, self.policies, self.vhosts)
        ]
        try:
            for count in COUNTS:
                await self.add(count)
            for side in sides:
                if side.done():
                    side.result()
        finally:
            self.moved = True
            _, left = await asyncio.wait(sides, timeout=WAIT_SECONDS + 5)
            for each in left:
                each.cancel()
        assert not left, "clients beside the load do not end"
        assert not self.wrong, "\n".join(self.wrong)

    async def add(self, count: int) -> None:
        nodes = self.nodes
        with api_client(self.any_node()) as client:
            answer = await asyncio.to_thread(client.post, "/repartition", json={"partitions": count})
        assert answer.status_code == 200, answer.text
        names = list(nodes.running)
        self.random.shuffle(names)
        for name in names:
            self.clients.urls = [node.amqp_url for other, node in nodes.running.items() if other != name]
            await asyncio.to_thread(nodes.stop, name)
            await asyncio.to_thread(nodes.start, name)
            self.serve()
        fault = self.random.choice(FAULTS)
        began = time.monotonic()
        await asyncio.sleep(self.random.uniform(0, 1.5))
        at = self.state()
        print(f"  {count}: {at['phase']}, moved {at['moved']}, {fault.__name__}", flush=True)
        await fault(self)
        self.serve()
        await self.progress()
        if self.random.random() < 0.7 or count == COUNTS[-1]:
            await self.until(lambda: self.state()["phase"] == "done", "the repartition does not get done")
        else:
            await self.until(lambda: self.state()["placed_by"] == count, "queues are not placed anew")
        at = self.state()
        print(
            f"  {count}: {at['phase']}, moved {at['moved']}, {time.monotonic() - began:.1f} s {at['reasons']}",
            flush=True,
        )

    def any_node(self) -> RunningBroker:
        return self.random.choice(list(self.nodes.running.values()))

    def state(self) -> dict[str, Any]:
        with api_client(self.any_node()) as client:
            found: dict[str, Any] = client.get("/repartition").raise_for_status().json()
        return found

    def owner(self, number: int) -> str:
        with api_client(self.any_node()) as client:
            places = client.get("/placement").raise_for_status().json()
        owner = places[number]["owner"]
        return owner if owner in self.nodes.running else self.random.choice(list(self.nodes.running))


# -- faults -----------------------------------------------------------------------------------------------------------


async def nothing(trial: AllQueues) -> None:
    pass


async def kill(trial: AllQueues, name: str) -> None:
    nodes = trial.nodes
    await asyncio.to_thread(nodes.kill, name)
    trial.serve()
    if trial.random.random() < 0.5:
        await trial.progress()
    await asyncio.to_thread(nodes.start, name)


async def kill_the_mover(trial: AllQueues) -> None:
    await kill(trial, trial.owner(0))


async def kill_an_owner(trial: AllQueues) -> None:
    await kill(trial, trial.owner(trial.random.randrange(1, 3)))


async def kill_the_last_owner(trial: AllQueues) -> None:
    await kill(trial, trial.owner(-1))


async def kill_two(trial: AllQueues) -> None:
    nodes = trial.nodes
    names = trial.random.sample(list(nodes.running), 2)
    for name in names:
        await asyncio.to_thread(nodes.kill, name)
    trial.serve()
    for name in names:
        await asyncio.to_thread(nodes.start, name)


async def stand_still(trial: AllQueues, seconds: float, name: str) -> None:
    nodes = trial.nodes
    nodes.pause(name)
    trial.clients.urls = [node.amqp_url for other, node in nodes.running.items() if other != name]
    try:
        await asyncio.sleep(seconds)
    finally:
        nodes.go_on(name)


async def stand_still_shortly(trial: AllQueues) -> None:
    await stand_still(trial, trial.nodes.timeout / 2, trial.random.choice(NAMES))


async def stand_still_for_long(trial: AllQueues) -> None:
    await stand_still(trial, trial.nodes.timeout + 2, trial.random.choice(NAMES))


async def the_mover_stands_still(trial: AllQueues) -> None:
    await stand_still(trial, trial.nodes.timeout + 2, trial.owner(0))


Fault = Callable[[AllQueues], Awaitable[None]]
FAULTS: list[Fault] = [
    nothing,
    kill_the_mover,
    kill_an_owner,
    kill_the_last_owner,
    kill_two,
    stand_still_shortly,
    stand_still_for_long,
    the_mover_stands_still,
]


# -- what lay in queues -----------------------------------------------------------------------------------------------


def fill(node: RunningBroker) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in STORED:
            channel.queue_declare(name, durable=True)
        channel = connection.channel()
        channel.tx_select()
        for number in range(MESSAGES):
            for name in STORED:
                channel.basic_publish("", name, f"{name} {number}".encode(), pika.BasicProperties(delivery_mode=2))
        channel.tx_commit()


def check_stored(node: RunningBroker) -> None:
    """Each of these queues has all of its messages, once, in order."""
    found: dict[str, list[str]] = {name: [] for name in STORED}

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        found[body.decode().split()[0]].append(body.decode())

    with connect(node) as connection:
        channel = connection.channel()
        for name in STORED:
            channel.basic_consume(name, take, auto_ack=True)
        deadline = time.monotonic() + WAIT_SECONDS
        while sum(map(len, found.values())) < MESSAGES * len(STORED) and time.monotonic() < deadline:
            connection.process_data_events(0.1)
        connection.process_data_events(0.2)
    expected = {name: [f"{name} {number}" for number in range(MESSAGES)] for name in STORED}
    wrong = [
        f"{name}: {len(found[name])} messages: {found[name][:5]}" for name in STORED if found[name] != expected[name]
    ]
    assert not wrong, "\n".join(wrong)


async def repartitions(trial: Trial) -> None:
    assert isinstance(trial, AllQueues)
    await trial.repartitions()
    await asyncio.to_thread(check_stored, trial.any_node())


def go_through(directory: Path, kafka: KafkaCluster, seed: int, standbys: str, totals: Totals) -> None:
    """One round."""
    print(f"seed {seed}", flush=True)
    with Nodes(directory, kafka, "", 3, standbys, PausingNode) as nodes:
        for name in NAMES:
            nodes.start(name)
        fill(nodes.running["north"])
        trial = AllQueues(nodes, seed)
        try:
            asyncio.run(trial.run(repartitions, totals))
        except BaseException:
            for name, node in [*((node.data.name, node) for node in nodes.ended), *nodes.running.items()]:
                print(f"--- {name}", *list(node.errors)[-60:], sep="\n", flush=True)
            raise
        finally:
            longest = {kind: round(seconds, 1) for kind, seconds in trial.longest.items()}
            print(f"  beside: steps {trial.steps}, longest s {longest}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--standbys", default="all")
    asked = parser.parse_args()
    totals = Totals()
    for name in ("aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # connections break, as they should
    with tempfile.TemporaryDirectory() as home, KafkaCluster(Path(home) / "kafka", settings=FAST) as kafka:
        try:
            for seed in range(asked.first, asked.end):
                go_through(Path(home) / str(seed), kafka, seed, asked.standbys, totals)
        finally:
            print(totals)


if __name__ == "__main__":
    main()
