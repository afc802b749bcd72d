"""`rewindmq events --kafka`: the log of nodes on a Kafka, read from the topics, beside a node and without one.

The same of the embedded log is in tests/system/cli/test_cli_events.py.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.commands import require_failure
from tests.support.forked import run
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import connect
from tests.support.ports import free_port

HOME = partition_of("/", "orders", 2)
LINE = re.compile(r"(metadata|queues)-\d:\d+  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00  ")


@pytest.fixture(scope="module")
def nodes(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A queue gets five messages under a limit of three, and is purged; a service writes a record that is no event."""
    with Nodes(tmp_path_factory.mktemp("events"), kafka, timeout=30) as nodes:
        north = nodes.start("north")
        with connect(north) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True, arguments={"x-max-length": 3})
            channel.queue_declare("other", durable=True)
            for number in range(5):
                channel.basic_publish("", "orders", b"order %d" % number)
            service = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": nodes.prefix})
            service.init_transactions(30)
            service.begin_transaction()
            service.produce(f"{nodes.prefix}.queues", b"no event", partition=HOME)
            service.commit_transaction(30)
            channel.queue_purge("orders")
        yield nodes


def shown(nodes: Nodes, *options: str) -> list[str]:
    done = run("events", "--kafka", nodes.kafka.bootstrap, "--kafka-prefix", nodes.prefix, *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def as_json(nodes: Nodes, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown(nodes, "--format", "json", *options)]


def test_all_partitions_are_printed_one_event_a_line_in_the_order_of_time(nodes: Nodes) -> None:
    lines = shown(nodes)
    assert all(LINE.match(line) for line in lines)
    assert [line.split()[1] for line in lines] == sorted(line.split()[1] for line in lines)
    assert {line.partition(":")[0] for line in lines} == {"metadata-0", "queues-0", "queues-1"}
    assert sum("Published routing_key=orders queues=[orders]" in line for line in lines) == 5


def test_a_record_that_is_no_event_says_so_and_its_commit_is_no_line(nodes: Nodes) -> None:
    every = as_json(nodes, "--partition", f"queues-{HOME}")
    [strange] = [each for each in every if each["event"] is None]
    assert strange["problem"]
    assert [each["event"] for each in every if each["offset"] > strange["offset"]] == ["Purged"]


def test_effects_follow_each_event(nodes: Nodes) -> None:
    every = as_json(nodes, "--queue", "orders", "--effects")
    dropped = [each for each in every for effect in each.get("effects", []) if effect.get("reason") == "maxlen"]
    assert len(dropped) == 2
    purged = next(each for each in every if each["event"] == "Purged")
    assert [(each["effect"], each["reason"], len(each["message_ids"])) for each in purged["effects"]] == [
        ("Forget", "purged", 3)
    ]


def test_from_to_and_tail_are_times_of_kafka_and_offsets_of_the_topic(nodes: Nodes) -> None:
    every = as_json(nodes, "--queue", "orders")
    declared, purged = every[0], every[-1]
    assert (declared["event"], purged["event"]) == ("QueueDeclared", "Purged")
    assert as_json(nodes, "--queue", "orders", "--tail", "2") == every[-2:]
    assert as_json(nodes, "--queue", "orders", "--from", "-10m") == every
    assert as_json(nodes, "--queue", "orders", "--to", "-10m") == []
    offset = str(purged["offset"])
    assert as_json(nodes, "--queue", "orders", "--partition", f"queues-{HOME}", "--from", offset) == [purged]
    assert purged not in as_json(nodes, "--queue", "orders", "--partition", f"queues-{HOME}", "--to", offset)


def test_no_node_is_asked(nodes: Nodes) -> None:
    before = shown(nodes, "--queue", "orders")
    nodes.stop("north")
    assert shown(nodes, "--queue", "orders") == before


@pytest.mark.long
def test_a_kafka_that_is_away_and_a_prefix_without_topics_are_one_line(nodes: Nodes) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    require_failure(run("events", "--kafka", nowhere), 69, f"Error: Kafka: no answer from {nowhere}: ")
    done = run("events", "--kafka", nodes.kafka.bootstrap, "--kafka-prefix", "none")
    require_failure(done, 69, "Error: ")
    assert "none." in done.stderr
