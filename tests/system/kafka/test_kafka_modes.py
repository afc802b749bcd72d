"""Partitions that a node pauses and resumes, on a real Kafka: nothing is lost, nothing comes twice, and each answer is
that of a node that folds everything."""

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, NackError, UnroutableError

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.single_object import HEADER
from tests.support.deadlines import SECONDS, until
from tests.support.failpoints import armed
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.following import Following
from tests.support.kafka.nodes import Nodes, modes, owned
from tests.support.pika_clients import confirming, connect
from tests.support.running import RunningBroker

PERSISTENT = pika.BasicProperties(delivery_mode=2)
PARTITIONS = 2


def test_b49_records_come_once_however_often_a_partition_is_paused(kafka: KafkaCluster) -> None:
    async def story() -> None:
        log = KafkaLog.open(kafka.bootstrap, f"modes-{uuid.uuid4().hex[:12]}", reports=True)
        following = Following(log)
        partition, name = log.queues[0], log.queues[0].name
        partition.report(True)
        numbers = itertools.count()
        sent: list[bytes] = []

        def send(count: int) -> None:
            for number in itertools.islice(numbers, count):
                sent.append(HEADER + b"%d" % number)
                partition.append(b"/q", sent[-1])
            log.flush()

        for pause in range(8):
            send(300 if pause % 2 else 3)
            await log.pause(name)
            came = len(following.values[name])
            send(100)
            await following.until(lambda: len(following.delivered_at[name]) == len(sent))
            assert len(following.values[name]) == came, "a record came while the partition was paused"
            log.resume(name, following.offsets[name][-1] + 1 if came else 0)
            await log.catch_up(name)
            assert following.values[name] == sent
        assert following.delivered_at[name] == following.offsets[name]
        partition.report(False)
        send(10)
        await following.until(lambda: len(following.values[name]) >= len(sent))
        assert following.values[name] == sent
        assert len(following.delivered_at[name]) == len(sent) - 10
        assert not following.troubles
        assert not following.failures
        log.close()

    asyncio.run(story())


def test_b49_a_node_fails_when_it_takes_no_more_reports(kafka: KafkaCluster) -> None:
    """It would confirm nothing more that is published to partitions that it has paused."""

    def broken() -> None:
        raise RuntimeError("a defect")

    async def story() -> None:
        log = KafkaLog.open(kafka.bootstrap, f"reports-{uuid.uuid4().hex[:12]}", reports=True)
        following = Following(log)
        log.queues[0].append(b"/q", b"1")
        await following.until(lambda: bool(following.failures))
        assert "a defect" in str(following.failures[0])
        with pytest.raises(LogError, match="a defect"):
            log.close()

    with armed("kafka.after_reports", broken):
        asyncio.run(story())


LARGE = bytes(100_000)
FETCH_BYTES = 4 * 1024 * 1024 + len(LARGE)  # of one that is under way when the partition is paused
READ_AHEAD_BYTES = 32 * 1024 * 1024 + 2 * FETCH_BYTES  # librdkafka's queue, and a fetch for each partition


def test_b49_a_paused_partition_keeps_one_fetch_at_most(kafka: KafkaCluster) -> None:
    """60 MB wait in Kafka, and librdkafka has read ahead as much as it may when the partition is paused."""
    prefix = f"ahead-{uuid.uuid4().hex[:12]}"
    told: list[dict[str, Any]] = []
    settings: Any = {"statistics.interval.ms": "50", "stats_cb": lambda text: told.append(json.loads(text))}
    log = KafkaLog.open(kafka.bootstrap, prefix, reports=True, settings=settings)
    partition, name = log.queues[0], log.queues[0].name

    def read_ahead() -> list[int]:
        """The bytes that the client that follows has read ahead for the partition, each time it told them."""
        of_follower = [each["topics"] for each in told if f"{prefix}.metadata" in each["topics"]]
        topics = [each[f"{prefix}.queues"]["partitions"] for each in of_follower if f"{prefix}.queues" in each]
        return [each["0"]["fetchq_size"] for each in topics if "0" in each]

    async def some_told() -> None:
        async with asyncio.timeout(SECONDS):
            while len(read_ahead()) < 3:
                await asyncio.sleep(0.02)

    async def story() -> None:
        following = Following(log)
        partition.report(True)
        await log.pause(name)
        for _ in range(600):
            partition.append(b"/q", LARGE)
        await following.until(lambda: len(following.delivered_at[name]) == 600)
        told.clear()
        await some_told()
        assert max(read_ahead()) <= FETCH_BYTES, "a paused partition is not fetched"

        log.resume(name, 0)
        time.sleep(1.0)  # the loop has no time for records
        told.clear()
        await log.pause(name)
        came = len(following.values[name])
        assert came < 600
        assert max(read_ahead(), default=0) <= READ_AHEAD_BYTES
        told.clear()
        await some_told()
        assert read_ahead()[-1] <= FETCH_BYTES, "what was read ahead is dropped"
        assert len(following.values[name]) == came
        log.resume(name, came)
        await log.catch_up(name)
        assert len(following.values[name]) == 600
        log.close()

    asyncio.run(story())


@pytest.fixture(scope="module")
def nodes(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("modes"), kafka, timeout=10, standbys="0") as nodes:
        nodes.start("north")
        nodes.start("south")
        yield nodes
        nodes.digests()


class Story:
    """A queue whose partition south has paused, and north folds. It is bound to amq.fanout."""

    def __init__(self, nodes: Nodes, there: BlockingChannel) -> None:
        self.nodes = nodes
        self.there = there
        names = [queue_in(partition) for partition in range(PARTITIONS)]
        for name in names:
            there.queue_declare(name, durable=True)
        nodes.stop("south")
        nodes.start("south")  # it begins with its state, and pauses what it does not need
        until(self._is_paused, "south pauses no partition that north owns")
        self.name = names[self.partition]
        self.unused = names[1 - self.partition]
        there.queue_bind(self.name, "amq.fanout")

    def _is_paused(self) -> bool:
        found = modes(self.nodes.running["south"])
        north, south = owned(self.nodes.running["north"]), owned(self.nodes.running["south"])
        if sorted(north.values()) != [False, True] or any(north[name] == south[name] for name in north):
            return False  # duties are on their way: each node comes to own one of both
        paused = [n for n in range(PARTITIONS) if found[f"queues-{n}"] == "append" and north[f"queues-{n}"]]
        self.partition = paused[0] if paused else 0
        return bool(paused)

    @property
    def mode(self) -> str:
        return modes(self.nodes.running["south"])[f"queues-{self.partition}"]

    def count(self) -> int:
        found: int = self.there.queue_declare(self.name, passive=True).method.message_count
        return found


@pytest.fixture
def story(nodes: Nodes) -> Iterator[Story]:
    with confirming(nodes.running["north"]) as there:
        story = Story(nodes, there)
        yield story
        there.queue_delete(story.name)
        there.queue_delete(story.unused)


@pytest.fixture
def here(story: Story) -> Iterator[BlockingChannel]:
    with confirming(story.nodes.running["south"]) as here:
        yield here


def queue_in(partition: int) -> str:
    """A new name that lies in this partition."""
    names = (f"q-{uuid.uuid4().hex[:8]}" for _ in itertools.count())
    return next(name for name in names if partition_of("/", name, PARTITIONS) == partition)


def test_b49_a_node_confirms_what_it_does_not_fold(story: Story, here: BlockingChannel) -> None:
    for number in range(200):
        here.basic_publish("amq.fanout" if number % 2 else "", story.name, b"%d" % number, PERSISTENT)
    assert story.mode == "append"
    assert story.count() == 200
    got = [story.there.basic_get(story.name, auto_ack=True)[2] for _ in range(200)]
    assert got == [b"%d" % number for number in range(200)]


def test_b49_a_consumer_comes_to_a_node_that_had_paused_its_partition(story: Story, here: BlockingChannel) -> None:
    for number in range(50):
        here.basic_publish("", story.name, b"%d" % number, PERSISTENT)
    assert story.mode == "append"
    got: list[bytes] = []
    for method, _, body in here.consume(story.name, auto_ack=True):
        got.append(body)
        if len(got) == 50:
            break
        assert method is not None
    here.cancel()
    assert got == [b"%d" % number for number in range(50)]
    assert story.mode == "fold"
    assert story.count() == 0


def test_b49_answers_that_only_the_fold_has(story: Story, here: BlockingChannel) -> None:
    with pytest.raises(UnroutableError):
        here.basic_publish("", queue_in(story.partition), b"nowhere", PERSISTENT, mandatory=True)
    assert story.mode == "fold"
    here.basic_publish("", story.name, b"", PERSISTENT, mandatory=True)
    assert here.queue_declare(story.name, passive=True).method.message_count == 1
    assert here.queue_purge(story.name).method.message_count == 1


@pytest.mark.long
def test_b49_a_queue_that_was_declared_a_moment_ago_is_found(story: Story, here: BlockingChannel) -> None:
    name = queue_in(story.partition)
    story.there.queue_declare(name, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    here.basic_publish("", name, b"taken", PERSISTENT)
    with pytest.raises(NackError):
        here.basic_publish("", name, b"refused", PERSISTENT)
    story.there.queue_delete(name)


@pytest.mark.long
def test_b49_a_queue_that_refuses_since_it_was_declared_anew(story: Story, here: BlockingChannel) -> None:
    here.basic_publish("", story.name, b"0", PERSISTENT)
    assert story.mode == "append"
    story.there.queue_delete(story.name)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    story.there.queue_declare(story.name, durable=True, arguments=arguments)
    with connect(story.nodes.running["south"]) as connection:
        channel = connection.channel()  # another node's word takes a moment
        until(lambda: refuses(channel, story.name), "the queue's publishers are not told that it refuses")


def refuses(channel: BlockingChannel, queue: str) -> bool:
    channel.confirm_delivery()
    try:
        channel.basic_publish("", queue, b"", PERSISTENT)
    except NackError:
        return True
    return False


@pytest.mark.long
def test_b49_a_refusing_policy_reaches_a_queue_when_every_node_knows_it(story: Story, here: BlockingChannel) -> None:
    here.basic_publish("amq.fanout", "", b"0", PERSISTENT)
    assert story.mode == "append"
    policy = {"pattern": f"^{story.name}$", "definition": {"max-length": 2, "overflow": "reject-publish"}}
    with api_client(story.nodes.running["north"]) as client:
        assert client.put(f"policies/%2F/{story.name}", json=policy).status_code == 201
    here.basic_publish("amq.fanout", "", b"1", PERSISTENT)
    with pytest.raises(NackError):
        here.basic_publish("amq.fanout", "", b"2", PERSISTENT)
    assert story.count() == 2


@pytest.mark.long
def test_b49_messages_published_at_a_node_that_is_killed_are_there(story: Story) -> None:
    south = story.nodes.running["south"]
    with connect(south) as connection:
        here = connection.channel()
        here.confirm_delivery()
        for number in range(100):
            here.basic_publish("amq.fanout", "", b"%d" % number, PERSISTENT)
        assert story.mode == "append"
        story.nodes.kill("south")
        with pytest.raises(AMQPError):
            here.basic_publish("amq.fanout", "", b"lost", PERSISTENT)
    until(lambda: story.count() >= 100, "messages are missing")
    got = [story.there.basic_get(story.name, auto_ack=True)[2] for _ in range(100)]
    assert got == [b"%d" % number for number in range(100)]
    story.nodes.start("south")


def figures(node: RunningBroker) -> dict[str, tuple[int, ...]]:
    """Ready, unacked and consumers of each queue, as a node lists them."""
    with api_client(node) as client:
        return {
            queue["name"]: (queue["messages_ready"], queue["messages_unacknowledged"], queue["consumers"])
            for queue in client.get("queues").json()
        }


def ages(node: RunningBroker) -> dict[str, float]:
    """The age of the counters of each partition that the node does not fold, in seconds."""
    with api_client(node) as client:
        lines = client.get("../metrics").text.splitlines()
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith("rewindmq_counters_age_s")}


@pytest.mark.long
def test_b50_a_node_lists_what_it_does_not_fold(story: Story, here: BlockingChannel) -> None:
    north, south = story.nodes.running["north"], story.nodes.running["south"]
    for number in range(20):
        here.basic_publish("", story.name, b"%d" % number, PERSISTENT)
    story.there.basic_qos(prefetch_count=5)
    story.there.basic_consume(story.name, lambda *given: None)
    until(lambda: figures(north)[story.name] == (15, 5, 1), "north's consumer has not come")
    until(lambda: f"queues-{story.partition}" in ages(south), "south has no counters")
    until(lambda: figures(south).get(story.name) == (15, 5, 1), "south does not come to list what north has")
    assert figures(south)[story.unused] == (0, 0, 0)
    assert ages(south)[f"queues-{story.partition}"] < 60
    with api_client(south) as client:
        [item] = client.get("queues/%2F?page=1&name=" + story.name).json()["items"]
        assert item["counters_age_ms"] < 60_000
        overview = client.get("overview").json()
        assert overview["object_totals"]["queues"] >= 2
        assert overview["queue_totals"]["messages"] >= 20
        assert f'queue_messages_ready{{vhost="/",queue="{story.name}"}} 15' in client.get("../metrics/per-object").text
        assert client.get("queues/nowhere/q").status_code == 404
        assert story.mode == "append", "to list is not to fold"
        assert client.get(f"queues/%2F/{story.name}").json()["messages_unacknowledged"] == 5
    assert story.mode == "fold"


@pytest.mark.long
def test_b50_a_queue_that_is_deleted_leaves_the_listing_of_other_nodes(story: Story) -> None:
    south = story.nodes.running["south"]
    until(lambda: f"queues-{story.partition}" in ages(south), "south has no counters")
    until(lambda: story.name in figures(south), "south does not come to list the queue")
    story.there.queue_delete(story.name)
    until(lambda: story.name not in figures(south), "the queue stays in south's listing")
    assert story.mode == "append"


@pytest.mark.rare
@pytest.mark.long
def test_b58_consumers_and_the_node_near_a_queue_are_known_without_a_fold(story: Story) -> None:
    north, south = story.nodes.running["north"], story.nodes.running["south"]
    story.there.basic_consume(story.name, lambda *given: None, consumer_tag="b57")
    with api_client(south) as client:

        def consumers() -> dict[str, str]:
            return {each["consumer_tag"]: each["channel_details"]["node"] for each in client.get("consumers").json()}

        until(lambda: consumers() == {"b57": "north"}, "south does not come to list north's consumer")
        near = client.get(f"placement/%2F/{story.name}").json()
        assert (near["owner"], near["partition"]) == ("north", f"queues-{story.partition}")
        assert near["nodes"] == [{"name": "north", "address": f"127.0.0.1:{north.amqp_port}"}]
        assert {each["name"] for each in client.get("definitions").json()["queues"]} >= {story.name, story.unused}
        assert story.name in {each["destination"] for each in client.get("bindings").json()}
    done = run("rebalance", "owners", "--silent", "--formatter", "json", REWINDMQ_URL=south.http_url)
    assert done.returncode == 0, done.stderr
    rows = {row["Partition"]: row for row in json.loads(done.stdout)}
    assert rows[f"queues-{story.partition}"]["Owner"] == rows[f"queues-{story.partition}"]["Folded at"] == "north"
    assert rows[f"queues-{story.partition}"]["Consumers at"] == "north: 1"
    assert rows[f"queues-{1 - story.partition}"]["Owner"] == "south"
    assert story.mode == "append", "none of these makes it fold"


@pytest.mark.long
def test_b49_a_publish_over_http_folds_the_partitions_of_its_queues_only(story: Story) -> None:
    wish = {"properties": {}, "routing_key": story.unused, "payload": "x", "payload_encoding": "string"}
    with api_client(story.nodes.running["south"]) as client:
        assert client.put("exchanges/%2F/b49", json={"durable": True, "type": "fanout"}).status_code == 201
        assert story.mode == "append", "an exchange was declared"
        assert client.post("exchanges/%2F/b49/publish", json=wish).json() == {"routed": False}
        assert story.mode == "append", "nothing is bound"
        assert client.delete("exchanges/%2F/b49").status_code == 204
        assert story.mode == "append", "an exchange was deleted"
        assert client.put("cluster-name", json={"name": "b49"}).status_code == 204
        assert story.mode == "append", "the cluster has a name"
        assert client.post("exchanges/%2F/amq.default/publish", json=wish).json() == {"routed": True}
        assert story.mode == "append", "the queue is in the other partition"
        wish["routing_key"] = story.name
        assert client.post("exchanges/%2F/amq.default/publish", json=wish).json() == {"routed": True}
        assert story.mode == "fold"
    assert story.count() == 1


@pytest.mark.long
def test_b49_a_publish_over_http_to_nowhere_is_known_by_the_fold(story: Story) -> None:
    """A name that nobody declared: south has to fold the partition in which it would be."""
    nobody = queue_in(story.partition)
    wish = {"properties": {}, "routing_key": nobody, "payload": "x", "payload_encoding": "string"}
    with api_client(story.nodes.running["south"]) as client:
        assert client.post("exchanges/%2F/amq.default/publish", json=wish).json() == {"routed": False}
    assert story.mode == "fold"


@pytest.mark.long
def test_b70_requests_about_the_past_and_other_queues_fold_nothing_here(story: Story) -> None:
    """South gives the answers of a node that folds everything."""
    for number in range(3):
        story.there.basic_publish("", story.name, b"%d" % number, PERSISTENT)
    story.there.basic_publish("", story.unused, b"other", PERSISTENT)
    at, partition = story.name, f"queues-{story.partition}"
    with api_client(story.nodes.running["north"]) as north:
        assert north.put("marks/before").status_code == 201
    with api_client(story.nodes.running["south"]) as client:

        def answer(method: str, path: str, status: int, **given: Any) -> Any:
            response = client.request(method, path, **given)
            assert response.status_code == status, f"{method} {path}: {response.text}"
            assert story.mode == "append", f"{method} {path}"
            return response.json() if response.content else None

        assert answer("GET", f"queues/%2F/{at}/at?offset=1000000", 400)["error"] == "bad_request"
        assert answer("GET", f"queues/%2F/{at}/at?time=mark:before", 200)["messages"] == 3
        found = answer("GET", f"history/find/%2F/{at}?body=2", 200)["messages"]
        assert [each["payload"] for each in found] == ["2"]
        assert answer("GET", f"history/biography/%2F/{found[0]['message']}", 200)
        assert answer("GET", f"history/outcomes/%2F/{at}", 200)
        assert answer("PUT", "marks/now", 201) is None
        marked = {each["name"]: each["positions"] for each in answer("GET", "marks", 200)}
        assert marked["now"][partition] >= marked["before"][partition], "the mark is where Kafka ends"
        assert answer("GET", f"queues/%2F/{at}/at?time=mark:now", 200)["messages"] == 3
        plan = f"queues/%2F/{story.unused}/restore"
        assert answer("POST", plan, 200, json={"time": "mark:now", "only": "all", "dry_run": True})["messages"] == 0
        assert answer("DELETE", f"queues/%2F/{at}/restore", 404)
        limits = {"pattern": f"^{story.unused}$", "definition": {"max-length": 9}, "apply-to": "queues"}
        assert answer("PUT", "policies/%2F/b70", 201, json=limits) is None
        assert answer("PUT", "policies/%2F/b70", 204, json=limits) is None
        assert answer("GET", f"queues/%2F/{story.unused}", 200)["policy"] == "b70"
        assert answer("GET", "policies/%2F/b70/effects?clear=true", 200)["matched_now"] == 1
        exchanges = {"pattern": "", "definition": {"alternate-exchange": "amq.topic"}, "apply-to": "exchanges"}
        assert answer("PUT", "policies/%2F/b70-exchanges", 201, json=exchanges) is None
        assert answer("DELETE", "policies/%2F/b70-exchanges", 204) is None
        assert answer("DELETE", "policies/%2F/b70", 204) is None
        assert answer("PUT", "policies/%2F/b70", 400, json={"pattern": "", "definition": {"none": 1}})
        assert answer("DELETE", "vhosts/b70", 404)
        binding = {"source": "amq.fanout", "destination_type": "queue", "destination": story.unused, "vhost": "/"}
        document = {"bindings": [binding | {"routing_key": "", "arguments": {}}], "exchanges": []}
        assert answer("POST", "definitions", 204, json=document) is None
        answer("GET", f"quarantine?partition=queues-{1 - story.partition}", 200)
        answer("GET", "health/checks/node-is-quorum-critical", 200)

        undone = {"offset": marked["now"][partition], "only": "all", "to": story.unused}
        assert client.post(f"queues/%2F/{at}/restore", json=undone).json()["restored"] == 3
        assert story.mode == "append", "what came back went to the other partition"
        assert client.put("policies/%2F/b70", json=limits | {"pattern": "."}).status_code == 201
        assert story.mode == "fold", "the policy may match any queue"
        assert client.delete("policies/%2F/b70").status_code == 204


@pytest.mark.long
def test_b70_messages_are_moved_and_restored_to_a_paused_partition(story: Story) -> None:
    story.there.basic_publish("", story.unused, b"moved", PERSISTENT)
    with api_client(story.nodes.running["south"]) as client:
        [found] = client.get(f"history/find/%2F/{story.unused}?body=moved").json()["messages"]
        assert story.mode == "append"
        wish = {"messages": [found["message_id"]], "to": story.name}
        moved = client.post(f"queues/%2F/{story.unused}/messages/move", json=wish)
        assert moved.json()["moved"] == [found["message_id"]], moved.text
        assert story.mode == "fold"
    until(lambda: story.count() == 1, "the message does not come")
