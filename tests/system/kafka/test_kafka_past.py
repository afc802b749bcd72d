"""The past of queues on nodes whose log is in Kafka: over HTTP at any node, at the command line; what `verify` says.

The same questions of the embedded log are in tests/system/http/test_http_past.py and
tests/system/cli/test_cli_history.py.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from confluent_kafka import Producer
from rocksdict import Rdict

from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.single_records import NEIGHBOURS
from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.engine.log.kafka.read_back import BATCH_RECORDS
from rewindmq.engine.log.kafka.reader import KafkaPartition
from rewindmq.engine.rewind.queue_at import queue_at
from rewindmq.projections.rewind import At, parse_time
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.store import keys, rocks
from tests.support.commands import require_failure
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.following import Following
from tests.support.kafka.nodes import Nodes
from tests.support.moments import now
from tests.support.pika_clients import connect
from tests.support.ports import free_port
from tests.support.rocks import stored
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

HOME = partition_of("/", "past", 2)


@pytest.fixture(scope="module")
def nodes(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("past"), kafka, timeout=30) as nodes:
        nodes.start("north")
        nodes.start("south")
        yield nodes


@pytest.fixture(scope="module")
def north(nodes: Nodes) -> RunningBroker:
    return nodes.running["north"]


@pytest.fixture(scope="module")
def south(nodes: Nodes) -> RunningBroker:
    return nodes.running["south"]


@pytest.fixture(scope="module")
def moments(nodes: Nodes, north: RunningBroker) -> dict[str, str]:
    """The queue `past` is filled, and purged; in its partition happens something else between its first message and
    its second, and transactions of a service leave gaps."""
    moments = {"before": now()}
    with connect(north) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("past", durable=True)
        moments["empty"] = now()
        channel.basic_publish("", "past", b"m0", pika.BasicProperties(headers={"n": 0}))
        moments["one"] = now()
        put_gaps(nodes)
        for number in (1, 2):
            channel.basic_publish("", "past", b"m%d" % number)
        moments["full"] = now()
        channel.queue_purge("past")
        moments["purged"] = now()
    nodes.digests()  # which every node takes a snapshot for
    with connect(north) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "past", b"m3")
        channel.basic_get("past")
        moments["held"] = now()
    moments["last"] = now()
    return moments


def put_gaps(nodes: Nodes) -> None:
    """More records than neighbours may have between them. None is an event, and each transaction's end is a gap."""
    service = Producer({"bootstrap.servers": nodes.kafka.bootstrap, "transactional.id": nodes.prefix})
    service.init_transactions(30)
    for count in (1, NEIGHBOURS):
        service.begin_transaction()
        for _ in range(count):
            service.produce(f"{nodes.prefix}.queues", b"no event", partition=HOME)
        service.commit_transaction(30)


def at(node: RunningBroker, **query: str) -> dict[str, Any]:
    with api_client(node) as client:
        answer = client.get("/queues/%2F/past/at", params=query)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def payloads(past: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["state"], each["payload"]) for each in past["message_details"]]


def test_b29_each_node_finds_messages_and_tells_their_lives(
    north: RunningBroker, south: RunningBroker, moments: dict[str, str]
) -> None:
    for node in (north, south):
        with api_client(node) as client:
            found = client.get("/history/find/%2F/past", params={"body": "m"}).json()
            assert ([each["payload"] for each in found["messages"]], found["left"]) == (["m3", "m2", "m1", "m0"], 0)
            of_header = client.get("/history/find/%2F", params={"header": "n=0", "since": moments["empty"]}).json()
            assert [each["payload"] for each in of_header["messages"]] == ["m0"]
            life = client.get(f"/history/biography/%2F/{found['messages'][-1]['message']}").json()
            assert [row["outcome"] for row in life["rows"]] == ["published", "purged"]
            last = client.get("/history/outcomes/%2F/past", params={"tail": "2"}).json()
            assert [row["outcome"] for row in last["rows"]] == ["delivered", "requeued"]  # the connection closed
            query = {"from": moments["one"], "to": moments["purged"]}
            changes = client.get("/history/diff/%2F/past", params=query).json()
            assert [row["change"] for row in changes["rows"]] == [1, 1, -1, -1, -1]


def test_each_node_tells_what_was_in_a_queue(
    north: RunningBroker, south: RunningBroker, moments: dict[str, str]
) -> None:
    for node in (north, south):
        assert payloads(at(node, time=moments["empty"])) == []
        assert payloads(at(node, time=moments["one"])) == [("ready", "m0")]
        full = at(node, time=moments["full"])
        assert payloads(full) == [("ready", "m0"), ("ready", "m1"), ("ready", "m2")]
        assert full["at"]["partition"] == f"queues-{HOME}"
        assert full["at"]["time"] == moments["full"]
        first, second, _ = full["message_details"]
        assert first["properties"] == {"headers": {"n": 0}}
        assert moments["empty"] < first["published"] < moments["one"] < second["published"] < moments["full"]
        assert second["message_id"] - first["message_id"] > NEIGHBOURS
        assert payloads(at(node, offset=str(second["message_id"]))) == [("ready", "m0")]
        assert payloads(at(node, offset=str(second["message_id"] - 1))) == [("ready", "m0")]  # there is a gap
        assert payloads(at(node, offset=str(second["message_id"] + 1))) == [("ready", "m0"), ("ready", "m1")]
        assert payloads(at(node, time=moments["full"], first="1", count="1")) == [("ready", "m1")]
        assert payloads(at(node, time=moments["purged"])) == []
        assert payloads(at(node, time=moments["held"])) == [("unacked", "m3")]
        assert payloads(at(node, time=(datetime.now(UTC) + timedelta(days=1)).isoformat())) == [("ready", "m3")]


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ({"time": "2001-01-01T00:00:00Z"}, 400, "2001-01-01T00:00:00.000+00:00 is before the history, which begins"),
        ({"offset": "99999999"}, 400, f"queues-{HOME} has offsets 0 to "),
        ({"offset": "0"}, 404, "no queue 'past' in vhost '/' at offset 0"),
        ({"time": "before"}, 404, "no queue 'past' in vhost '/' at 20"),
    ],
)
def test_moments_that_are_none(
    south: RunningBroker, moments: dict[str, str], query: dict[str, str], status: int, reason: str
) -> None:
    query = {key: moments.get(value, value) for key, value in query.items()}
    with api_client(south) as client:
        answer = client.get("/queues/%2F/past/at", params=query)
    assert (answer.status_code, answer.json()["reason"][: len(reason)]) == (status, reason)


def test_a_nodes_snapshots_save_the_fold_before_them(
    nodes: Nodes, south: RunningBroker, moments: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folded_from: list[int] = []
    read = KafkaPartition.read

    def watched(self: KafkaPartition, offset: int = 0, end: int | None = None) -> Any:
        if self.name == f"queues-{HOME}":
            folded_from.append(offset)
        return read(self, offset, end)

    monkeypatch.setattr(KafkaPartition, "read", watched)
    moment = At(time_ms=parse_time(moments["last"]))
    found = []
    for data in (south.data, None):
        past = queue_at(InKafka(nodes.kafka.bootstrap, nodes.prefix, data=data), "/", "past", moment, 0, 10)
        found.append((past.offset, past.time_ms, repr(past.messages)))
        assert [message.published.body for message in past.messages] == [b"m3"]
    assert found[0] == found[1]
    (snapshot,) = (south.data / "snapshots" / f"queues-{HOME}").iterdir()
    assert folded_from == [int(snapshot.stem), 0]


def test_rewind_at_the_command_line(nodes: Nodes, north: RunningBroker, moments: dict[str, str]) -> None:
    kafka = ("--kafka", nodes.kafka.bootstrap, "--kafka-prefix", nodes.prefix)
    asked = ("rewind", "past", "--at", moments["full"])
    with ThreadPoolExecutor() as pool:
        online, from_kafka, by_a_node, bad_setting = pool.map(
            lambda command: run(*command[0], **command[1]),
            (
                (asked, {"REWINDMQ_URL": north.http_url, "REWINDMQ_KAFKA": nodes.kafka.bootstrap}),
                ((*asked, *kafka, "--kafka-setting", "client.rack=here"), {}),
                ((*asked, *kafka, "--data", str(north.data)), {}),
                ((*asked, *kafka, "--kafka-setting", "no.such=setting"), {}),
            ),
        )
    assert (online.returncode, online.stderr) == (0, "")
    assert [row.split("\t")[-1] for row in online.stdout.splitlines()[2:]] == ["m0", "m1", "m2"]
    assert from_kafka.stdout == by_a_node.stdout == online.stdout
    require_failure(bad_setting, 69, "Error: Kafka: its client cannot be set up: ")
    assert "no.such" in bad_setting.stderr


def verify(nodes: Nodes, data: Path) -> "subprocess.CompletedProcess[str]":
    return run(
        "verify",
        "--data",
        str(data),
        "--kafka",
        nodes.kafka.bootstrap,
        "--kafka-prefix",
        nodes.prefix,
        "--formatter",
        "json",
    )


def test_verify_finds_what_is_not_as_the_topics_say(
    nodes: Nodes, north: RunningBroker, moments: dict[str, str], tmp_path: Path
) -> None:
    west = nodes.start("west")  # which folds all of it, and has it in its RocksDB when it stops
    nodes.stop("west")
    with ThreadPoolExecutor() as pool:
        beside, whole = pool.map(partial(verify, nodes), (north.data, west.data))
    assert (beside.returncode, whole.returncode, whole.stderr) == (0, 0, "")
    rows = json.loads(whole.stdout)
    assert [(row["partition"], row["check"], row["result"]) for row in rows] == [
        ("metadata-0", "snapshots", "1 equal"),
        ("queues-0", "state", "equal"),
        ("queues-1", "state", "equal"),
    ]
    home = rows[1 + HOME]
    assert (home["queues"], home["messages"]) == (1, 1)
    assert home["events"] > NEIGHBOURS
    db: Rdict = rocks.open_database(west.data / "state")
    prefix = keys.partition_prefix(f"queues-{HOME}")
    (key,) = [key for key in db.keys() if isinstance(key, bytes) and key.startswith(prefix + b"M")]  # noqa: SIM118
    db.put(key, stored(db, key)[:-1] + b"!", rocks.without_wal())
    db.close()
    other, nobodys = tmp_path / "other", tmp_path / "nobodys"
    other.mkdir()
    nobodys.mkdir()
    (other / "kafka").write_text('{"format": 1, "history": "cluster=x"}\n')
    with ThreadPoolExecutor() as pool:
        damaged, of_other, of_nobody = pool.map(partial(verify, nodes), (west.data, other, nobodys))
    assert damaged.returncode == 1
    assert "//past: " in damaged.stdout
    assert damaged.stderr.startswith("Error: the stored state differs from the log in 1 places")
    require_failure(of_other, 65, f"Error: {other}: holds the state of another history than {nodes.prefix}.* at ")
    require_failure(of_nobody, 65, f"Error: {nobodys}: not the data directory of a node")


@pytest.mark.rare
def test_kafka_away_is_told_within_seconds(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Nothing hangs, and everything goes on when Kafka is back."""
    nowhere = ("--kafka", f"127.0.0.1:{free_port()}")
    with kafka.proxied() as proxies, Nodes(tmp_path, kafka, timeout=30) as cut_off, ThreadPoolExecutor() as pool:
        node = cut_off.start("cut-off", proxies.bootstrap)
        with api_client(node) as client:
            assert client.put("/queues/%2F/past", json={"durable": True}).status_code == 201
            assert client.get("/queues/%2F/past/at?offset=999").json()["reason"].startswith("queues-")
            (offset,) = [each["durable_offset"] for each in client.get("/overview").json()["log"][HOME : HOME + 1]]
            proxies.blackhole()
            answer = pool.submit(client.get, f"/queues/%2F/past/at?offset={offset}")
            commands = [
                pool.submit(run, "rewind", "past", "--offset", "1", *nowhere),
                pool.submit(run, "verify", "--data", str(node.data), *nowhere),
            ]
            without_topics = pool.submit(
                run, "rewind", "past", "--offset", "1", "--kafka", kafka.bootstrap, "--kafka-prefix", "nobodys"
            )
            assert answer.result().status_code == 503
            assert answer.result().json()["error"] == "service_unavailable"
            assert answer.result().json()["reason"].startswith("Kafka: no answer from 127.0.0.1:")
            for command in commands:
                require_failure(command.result(), 69, "Error: Kafka: no answer from 127.0.0.1:")
            no_topic = f"Error: Kafka: at {kafka.bootstrap} there is no topic nobodys.metadata"
            require_failure(without_topics.result(), 69, no_topic)
            proxies.resume()
            until(lambda: client.get(f"/queues/%2F/past/at?offset={offset}").status_code == 200, "the past is away")


def listed(node: RunningBroker, path: str) -> Any:
    """The JSON of the API."""
    with api_client(node) as client:
        return client.get(path).raise_for_status().json()


def test_a_node_shows_what_is_known_of_the_others_clients(north: RunningBroker, south: RunningBroker) -> None:
    connection = connect(south)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("shared", durable=True)
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", "shared", b"x", pika.BasicProperties(timestamp=1_700_000_000))
    until(lambda: listed(north, "/queues/%2F/shared")["messages"] == 1, "north never saw the message")
    with api_client(north) as client:
        shown = client.get("/queues/%2F/shared").json()
        assert shown["head_message_timestamp"] == 1_700_000_000
        channel.basic_qos(prefetch_count=7)
        tag = channel.basic_consume("shared", lambda *message: None)
        until(lambda: client.get("/consumers").json(), "north never saw the consumer")
        (consumer,) = client.get("/consumers").json()
        details = consumer["channel_details"]
        assert (consumer["consumer_tag"], consumer["prefetch_count"], consumer["ack_required"]) == (tag, 7, True)
        assert (details["number"], details["node"]) == (1, "south")
        assert client.get("/queues/%2F/shared").json()["consumer_details"] == [consumer]
        exclusive = client.get(f"/queues/%2F/{own}").json()
        assert (exclusive["node"], exclusive["owner_pid_details"]["node"]) == ("south", "south")
        assert exclusive["owner_pid_details"]["session_id"] == details["session_id"]
        assert client.get("/connections").json() == client.get("/channels").json() == []
        (theirs,) = listed(south, "/connections")
        assert theirs["session_id"] == details["session_id"]
        name = httpx2.URL("x", path=theirs["name"]).raw_path.decode()
        assert client.delete(f"/connections/{name}").status_code == 404
    url = {"REWINDMQ_URL": north.http_url}
    consumers = run("list_consumers", "-s", **url).stdout.split("\t")
    assert consumers[:3] == ["shared", f"<south.{details['session_id']}.1>", tag]
    queues = run("list_queues", "name", "owner_pid", "-s", **url).stdout.splitlines()
    assert f"{own}\t<south.{details['session_id']}>" in queues
    with api_client(south) as client:
        assert client.delete(f"/connections/{name}").status_code == 204
    until(lambda: not listed(north, "/consumers"), "north still sees the consumer")


def metrics(node: RunningBroker) -> dict[str, float]:
    lines = httpx2.get(f"{node.http_url}/metrics", auth=("guest", "guest"), trust_env=False).text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_metrics_and_overview_tell_of_the_log(
    nodes: Nodes, north: RunningBroker, south: RunningBroker, moments: dict[str, str]
) -> None:
    both = (north, south)
    until(lambda: all(metrics(node)["rewindmq_nodes"] == 2 for node in both), "not two nodes")
    logs = InKafka(nodes.kafka.bootstrap, nodes.prefix).open().queues
    for log in logs:
        labels = f'{{partition="{log.name}"}}'

        def of(name: str, labels: str = labels) -> list[float]:
            return [metrics(node)[f"rewindmq_{name}{labels}"] for node in both]

        until(lambda of: sum(of("partition_owned")) == 1, f"{log.name} has not one owner", of)
        until(lambda of, log: of("log_next_offset") == [log.next_offset] * 2, f"{log.name} ends elsewhere", of, log)
        applied, lag = of("log_applied_offset"), of("log_lag_events")
        assert [at + behind for at, behind in zip(applied, lag, strict=True)] == [log.next_offset] * 2
        assert of("events_in_flight") == [0, 0]
    for node in both:
        assert 0 < metrics(node)["rewindmq_log_read_back_seconds"] < 60
        with api_client(node) as client:
            items = client.get("/overview").json()["log"]
        owned = [metrics(node)[f'rewindmq_partition_owned{{partition="{log.name}"}}'] == 1 for log in logs]
        assert [(each["partition"], each["topic"], each["owned"]) for each in items] == [
            (log.name, f"{nodes.prefix}.queues", owner) for log, owner in zip(logs, owned, strict=True)
        ]


def test_a_log_knows_how_far_it_is_ahead_of_a_busy_node(kafka: KafkaCluster) -> None:
    log = KafkaLog.open(kafka.bootstrap, "ahead", partitions=1)
    queue, count = log.queues[0], 8 * BATCH_RECORDS
    for number in range(count):
        queue.append(b"", b"%d" % number)
    assert log.producer.flush(60) == 0
    assert log.ends() == {}

    async def follow() -> None:
        following = Following(log)
        until(lambda: log.ends().get("queues-0") == count, "Kafka never said how many there are")  # the loop stands
        assert not following.values["queues-0"]
        await following.until_read({"queues-0": count})

    asyncio.run(follow())
    log.close()
