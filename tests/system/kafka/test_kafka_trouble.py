"""The log in Kafka, while Kafka is not well: nothing is lost, nothing is there twice, the order is kept, and the node
is told when appends do not get through, and when they do again."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.kafka import clients
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.log import KafkaLog, ends_now
from rewindmq.engine.log.kafka.patience import PATIENCE_SECONDS
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from tests.support.deadlines import SECONDS, until
from tests.support.failpoints import armed
from tests.support.kafka.cluster import FAST, KafkaCluster
from tests.support.kafka.fixtures import require_kafka
from tests.support.kafka.following import Following
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

PARTITIONS = ("metadata-0", "queues-0", "queues-1")


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


class Appending:
    """Appends numbers to all partitions, a few each millisecond, until it is told to end."""

    def __init__(self, log: KafkaLog) -> None:
        self.log = log
        self.count = 0
        self._ending = False
        self._task = asyncio.ensure_future(self._run())

    async def end(self) -> None:
        self._ending = True
        await self._task

    async def _run(self) -> None:
        while not self._ending:
            for partition in (self.log.metadata, *self.log.queues):
                partition.append(b"key", b"%d" % self.count)
            self.count += 1
            self.log.flush()
            await asyncio.sleep(0.001)


async def new_events_came_back(following: Following, appending: Appending) -> None:
    """On every partition something that was appended from now on."""
    now = appending.count
    await following.until_read(dict.fromkeys(PARTITIONS, now + 1))


def all_are_there_in_order(following: Following, count: int) -> None:
    for name in PARTITIONS:
        assert following.values[name] == [b"%d" % number for number in range(count)], name
        assert following.offsets[name] == sorted(set(following.offsets[name]))
    assert following.failures == []


def troubles_were_told_and_taken_back(following: Following) -> None:
    assert len(following.troubles) % 2 == 0
    assert following.troubles, "no trouble was told"
    assert all(why is not None and why.startswith("Kafka does not take events") for why in following.troubles[::2])
    assert set(following.troubles[1::2]) == {None}


@pytest.mark.rare
def test_each_of_three_nodes_dies_in_turn(kafka3: KafkaCluster, prefix: str) -> None:
    """S-115, S-123."""

    async def run() -> tuple[Following, int]:
        log = KafkaLog.open(kafka3.bootstrap, prefix)
        assert all(len(replicas.replicas) == 3 for replicas in log.placement())
        following = Following(log)
        appending = Appending(log)
        for node in (1, 2, 3):
            await new_events_came_back(following, appending)
            kafka3.kill(node)
            await new_events_came_back(following, appending)
            await asyncio.to_thread(kafka3.start_node, node)
            await asyncio.to_thread(kafka3.wait_in_sync)
        await appending.end()
        await following.until_read(dict.fromkeys(PARTITIONS, appending.count))
        await following.until(lambda: len(following.troubles) % 2 == 0)
        await asyncio.to_thread(log.close)
        return following, appending.count

    following, count = asyncio.run(run())
    all_are_there_in_order(following, count)
    troubles_were_told_and_taken_back(following)


@pytest.mark.rare
def test_a_partition_without_a_leader_at_first_has_an_end_later(kafka3: KafkaCluster, prefix: str) -> None:
    """Kafka's client keeps for a quarter of an hour that there was no leader. So a node could not answer that a thing
    is missing, nor fold a partition that it had paused."""
    log = KafkaLog.open(kafka3.bootstrap, prefix, replication=1)
    leader = kafka3.bootstrap.split(",").index(log.placement()[0].leader) + 1
    clients = KafkaClients(kafka3.bootstrap)
    partition = KafkaPartition(clients, log.queues[0].topic, 0, "queues-0")
    log.close()

    kafka3.kill(leader)
    try:
        until(lambda: leader_of(kafka3, partition) == -1, "the partition still has a leader")
        with pytest.raises(LogError, match="No leaders found"):
            asyncio.run(ends_now(clients, [partition]))
    finally:
        kafka3.start_node(leader)
        kafka3.wait_in_sync()
    until(lambda: has_end(clients, partition), "the end of the partition is not known")


def leader_of(kafka: KafkaCluster, partition: KafkaPartition) -> int:
    """The number of the broker, as Kafka says it to a client that asks for the first time; -1: there is none."""
    found = KafkaClients(kafka.bootstrap).admin().list_topics(partition.topic, timeout=SECONDS)
    leader: int = found.topics[partition.topic].partitions[partition.number].leader
    return leader


def has_end(clients: KafkaClients, partition: KafkaPartition) -> bool:
    try:
        return asyncio.run(ends_now(clients, [partition])) == {partition.name: 0}
    except LogError:
        return False


@pytest.mark.rare
def test_a_start_waits_for_a_controller(kafka3: KafkaCluster, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three nodes die before the topics are made, and come back: nobody can make one in between."""
    back: list[threading.Thread] = []

    def while_nobody_is_elected() -> None:
        for node in (1, 2):
            kafka3.kill(node)

        def come_back() -> None:
            time.sleep(7)  # longer than one request waits for its answer
            for node in (1, 2):
                kafka3.start_node(node, wait=False)

        back.append(threading.Thread(target=come_back))
        back[0].start()

    # Two nodes start late where all is busy.
    patience = dict.fromkeys(clients.ASKED_SECONDS, 4 * clients.TIMEOUT_SECONDS)
    monkeypatch.setattr(clients, "ASKED_SECONDS", patience)
    try:
        with armed("kafka.before_topics", while_nobody_is_elected):
            log = KafkaLog.open(kafka3.bootstrap, prefix, 2, 3)
        assert [len(replicas.replicas) for replicas in log.placement()] == [3, 3]
        log.close()
    finally:
        back[0].join()
        kafka3.wait()
        kafka3.wait_in_sync()


@pytest.mark.rare
def test_a_node_that_starts_during_an_election_joins(kafka3: KafkaCluster, prefix: str, tmp_path: Path) -> None:
    """Two of three controllers are away for longer than a client waits for an answer. The node ended with 69."""
    options = ("--kafka", kafka3.bootstrap, "--kafka-prefix", prefix, "--node", "north")
    for number in (1, 2):
        kafka3.kill(number)
    with ThreadPoolExecutor(1) as starting:
        started = starting.submit(RunningBroker, tmp_path / "north", *options)
        try:
            time.sleep(clients.TIMEOUT_SECONDS + 5)
            assert not started.done()
        finally:
            for number in (1, 2):
                kafka3.start_node(number, wait=False)
            kafka3.wait()
            kafka3.wait_in_sync()
        node = started.result(timeout=SECONDS)
    assert node.stop() == 0
    assert any("this node asks again" in line for line in node.errors)


def test_a_leader_stands_still_until_another_leads(kafka3: KafkaCluster, prefix: str) -> None:
    """Its connections stay open, and what it had taken and not answered is in doubt."""

    async def run() -> tuple[Following, int]:
        log = KafkaLog.open(kafka3.bootstrap, prefix)
        following = Following(log)
        appending = Appending(log)
        await new_events_came_back(following, appending)
        port = int(log.placement()[0].leader.rpartition(":")[2])
        node = kafka3.ports.index(port) + 1
        kafka3.pause(node)
        await new_events_came_back(following, appending)
        kafka3.go_on(node)
        await asyncio.to_thread(kafka3.wait_in_sync)
        await new_events_came_back(following, appending)
        await appending.end()
        await following.until_read(dict.fromkeys(PARTITIONS, appending.count))
        await following.until(lambda: len(following.troubles) % 2 == 0)
        await asyncio.to_thread(log.close)
        return following, appending.count

    following, count = asyncio.run(run())
    all_are_there_in_order(following, count)
    troubles_were_told_and_taken_back(following)


def test_the_only_node_dies_and_comes_back(kafka_alone: KafkaCluster, prefix: str) -> None:
    async def run() -> tuple[Following, int]:
        log = KafkaLog.open(kafka_alone.bootstrap, prefix)
        following = Following(log)
        appending = Appending(log)
        await following.until(lambda: len(following.owned) == 2)
        await new_events_came_back(following, appending)
        kafka_alone.kill(1)
        await following.until(lambda: bool(following.troubles))
        await following.until(lambda: following.owned == frozenset())
        await asyncio.to_thread(kafka_alone.start_node, 1)
        await new_events_came_back(following, appending)
        await following.until(lambda: following.troubles[-1] is None)
        await following.until(lambda: len(following.owned) == 2)
        await appending.end()
        await following.until_read(dict.fromkeys(PARTITIONS, appending.count))
        await asyncio.to_thread(log.close)
        return following, appending.count

    following, count = asyncio.run(run())
    all_are_there_in_order(following, count)
    troubles_were_told_and_taken_back(following)


@pytest.mark.parametrize("how", ["blackhole", "reset"])
def test_the_line_to_kafka_is_cut_and_mended(kafka: KafkaCluster, prefix: str, how: str) -> None:
    """Another node, whose line is not cut, sees the same order."""

    async def run(bootstrap: str, cut: Callable[[], None], resume: Callable[[], None]) -> tuple[list[Following], int]:
        log, other = KafkaLog.open(bootstrap, prefix), KafkaLog.open(kafka.bootstrap, prefix)
        following, watching = Following(log), Following(other)
        appending = Appending(log)
        for _ in range(2):
            await new_events_came_back(following, appending)
            await following.until(lambda: len(following.troubles) % 2 == 0)  # a slow Kafka may be in trouble by itself
            cut()
            await following.until(lambda: len(following.troubles) % 2 == 1)
            resume()
            await following.until(lambda: len(following.troubles) % 2 == 0)
        await new_events_came_back(following, appending)
        await appending.end()
        for each in (following, watching):
            await each.until_read(dict.fromkeys(PARTITIONS, appending.count))
        for mine in (log, other):
            await asyncio.to_thread(mine.close)
        return [following, watching], appending.count

    with kafka.proxied() as line:
        cut = line.blackhole if how == "blackhole" else line.reset
        [following, watching], count = asyncio.run(run(line.bootstrap, cut, line.resume))
    all_are_there_in_order(following, count)
    all_are_there_in_order(watching, count)
    troubles_were_told_and_taken_back(following)
    assert (following.offsets, following.times) == (watching.offsets, watching.times)


def test_an_idle_node_hears_that_kafka_is_away(kafka: KafkaCluster, prefix: str) -> None:
    async def run(cut: Callable[[], None], resume: Callable[[], None], bootstrap: str) -> Following:
        log = KafkaLog.open(bootstrap, prefix)
        following = Following(log)
        log.metadata.append(b"", b"one")
        await following.until_read({"metadata-0": 1})
        cut()
        await following.until(lambda: len(following.troubles) == 1)
        resume()
        await following.until(lambda: len(following.troubles) == 2)
        await asyncio.to_thread(log.close)
        return following

    with kafka.proxied() as line:
        following = asyncio.run(run(line.reset, line.resume, line.bootstrap))
    troubles_were_told_and_taken_back(following)


def test_a_process_that_does_not_get_to_run_is_no_trouble_of_kafkas(kafka: KafkaCluster, prefix: str) -> None:
    """The thread that reads back stands still between its look at Kafka and its judgement, while something is
    appended."""
    standing_still, appended = threading.Event(), threading.Event()

    def late() -> None:
        if standing_still.is_set() and not appended.is_set():
            standing_still.clear()
            appended.wait(60)
            time.sleep(2 * PATIENCE_SECONDS)

    async def run() -> Following:
        log = KafkaLog.open(kafka.bootstrap, prefix)
        following = Following(log)
        log.metadata.append(b"", b"one")
        await following.until_read({"metadata-0": 1})
        standing_still.set()
        while standing_still.is_set():
            await asyncio.sleep(0.01)
        log.metadata.append(b"", b"two")
        appended.set()
        await following.until_read({"metadata-0": 2})
        log.metadata.append(b"", b"three")
        await following.until_read({"metadata-0": 3})
        await asyncio.to_thread(log.close)
        return following

    with armed("kafka.before_judgement", late):
        following = asyncio.run(run())
    assert following.troubles == []


@pytest.mark.parametrize("how", ["blackhole", "reset"])
def test_close_ends_without_kafka_and_says_what_is_left(kafka: KafkaCluster, prefix: str, how: str) -> None:
    async def run(bootstrap: str, cut: Callable[[], None]) -> None:
        log = KafkaLog.open(bootstrap, prefix)
        following = Following(log)
        log.queues[0].append(b"", b"before")
        await following.until_read({"queues-0": 1})
        await following.until(lambda: len(following.owned) == 2)
        cut()
        for number in range(7):
            log.queues[0].append(b"", b"%d" % number)
        with pytest.raises(LogError, match="7 events were appended and are not in the log"):
            await asyncio.to_thread(log.close)

    with kafka.proxied() as line:
        asyncio.run(run(line.bootstrap, line.blackhole if how == "blackhole" else line.reset))


def test_a_start_without_kafka_fails(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    wait_only(monkeypatch, 3.0)
    with pytest.raises(NoAnswer, match=r"^Kafka: no answer from 127.0.0.1:1: .*Connection refused"):
        KafkaLog.open("127.0.0.1:1", prefix)


@pytest.mark.rare
def test_a_kafka_that_asks_for_a_password(
    tmp_path_factory: pytest.TempPathFactory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings for it reach every client: of topics, appends, reading, reading back, and duties."""
    require_kafka()
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_node="secret";'
    of_kafka = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT",
        "listener.name.proxied.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.proxied.plain.sasl.jaas.config": login,
    }
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "node"}

    async def run(bootstrap: str) -> Following:
        log = KafkaLog.open(bootstrap, prefix, settings={**settings, "sasl.password": "secret"})
        following = Following(log)
        log.queues[0].append(b"", b"one")
        await following.until_read({"queues-0": 1})
        await following.until(lambda: len(following.owned) == 2)
        await asyncio.to_thread(log.close)
        return following

    directory = tmp_path_factory.mktemp("kafka-password")
    with KafkaCluster(directory, settings=of_kafka) as kafka, kafka.proxied() as line:
        following = asyncio.run(run(line.bootstrap))
        reader = KafkaLogReader(line.bootstrap, prefix, {**settings, "sasl.password": "secret"})
        assert [block.records for block in reader.queues[0].read()] == [following.values["queues-0"]] == [[b"one"]]
        wait_only(monkeypatch, 3.0)
        with pytest.raises(LogError, match="Kafka: "):
            KafkaLog.open(line.bootstrap, prefix, settings={**settings, "sasl.password": "wrong"})


def wait_only(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("rewindmq.engine.log.kafka.log.TIMEOUT_SECONDS", seconds)
    monkeypatch.setattr("rewindmq.engine.log.kafka.topics.ANSWER_SECONDS", seconds)
    monkeypatch.setattr("rewindmq.engine.log.kafka.clients.ASKED_SECONDS", {})


@pytest.fixture
def kafka_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One node, to kill."""
    require_kafka()
    with KafkaCluster(tmp_path_factory.mktemp("kafka-alone"), settings=FAST) as cluster:
        yield cluster
