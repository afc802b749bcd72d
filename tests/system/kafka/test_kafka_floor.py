"""Kafka keeps days, and the archive years: what is archived may leave Kafka (B-27)."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.archiving_brokers import archive_item, archiver_of
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.kafka.archived_topics import blocks
from tests.support.kafka.archiving_nodes import KEPT, QUEUES, FloorNodes, backlog, publish, take, wait_for_archive
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import NEVER, Nodes
from tests.support.kafka.topic_settings import change_setting
from tests.support.pika_clients import numbered

pytestmark = pytest.mark.long


def require_whole(nodes: FloorNodes) -> None:
    """The archive is whole, and goes on in Kafka."""
    log = nodes.log()
    for ours, theirs in zip(ArchivedLog(nodes.url).partitions, (log.metadata, *log.queues), strict=True):
        rows, start = blocks(ours), theirs.start_offset
        assert [row for row in rows if row[0] >= start] == [row for row in blocks(theirs) if row[0] < ours.next_offset]
        assert [error for _, error in verify(open_objects(nodes.url), ours.name) if error] == []


def test_b27_nodes_begin_with_the_archive(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A new node, and one that was away for longer than Kafka keeps. What is queued has its body at each."""
    with FloorNodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        publish(north, range(40))
        for queue in QUEUES:
            assert take(south, queue, 20) == numbered(range(20))
        nodes.stop("south")
        before = nodes.digests()  # takes snapshots
        publish(north, range(40, 60))
        wait_for_archive(nodes)
        nodes.delete_archived()
        publish(north, range(60, 70))
        assert nodes.digests() != before
        east = nodes.start("east")
        nodes.start("south")
        nodes.digests()
        assert all(start > 0 for start in nodes.starts())
        for name, each in (("east", east), ("south", nodes.running["south"])):
            said = "".join(each.errors)
            assert "in Kafka: the node begins with the archived state at" in said, f"{name}: {said}"
        nodes.kill("north")
        assert take(east, QUEUES[0], 50) == numbered(range(20, 70))
        assert take(nodes.running["south"], QUEUES[1], 50) == numbered(range(20, 70))
        require_whole(nodes)


@pytest.mark.rare
def test_b27_owners_remove_what_is_archived_and_kills_lose_nothing(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Owners and archivers are killed as soon as something was removed, and the ownership moves."""
    assert {partition_of("/", queue, 2) for queue in KEPT} == {0, 1}
    with FloorNodes(tmp_path, kafka) as nodes:
        nodes.keep_local = "20kB"
        backlog(nodes.start("north"))
        nodes.start("south")
        begun = [0, 0]
        for number in range(6):
            name, other = ("north", "south") if number % 2 else ("south", "north")
            node = nodes.running[name]
            for half in range(2):
                numbers = range(400 * number + 200 * half, 400 * number + 200 * half + 200)
                publish(node, numbers)
                for queue in QUEUES:
                    assert take(node, queue, 200) == numbered(numbers)
            until(lambda before: sum(nodes.starts()) > before, f"nothing is removed: {begun}", sum(begun))
            begun = nodes.starts()
            if number in (0, 1):
                killed = archiver_of(nodes.running[other])
                if killed is not None:
                    os.kill(killed, signal.SIGKILL)
            elif number < 5:
                nodes.kill(other)
                nodes.start(other)
        until(lambda: all(nodes.starts()), "nothing is removed of one partition")
        until(lambda: any(archive_item(nodes.running[name])["freed_bytes"] for name in ("north", "south")), "not told")
        nodes.digests()
        east = nodes.start("east")
        nodes.digests()
        nodes.kill("north")
        assert take(nodes.running["south"], KEPT[0], 20) == [b"kept %d" % number for number in range(20)]
        nodes.kill("south")
        assert take(east, KEPT[1], 20) == [b"kept %d" % number for number in range(20)]
        require_whole(nodes)
        assert [each.start_offset for each in (nodes.log().metadata,)] == [0]


def test_b27_a_topic_with_a_retention_needs_the_archive(kafka: KafkaCluster, tmp_path: Path) -> None:
    with FloorNodes(tmp_path, kafka, timeout=NEVER) as nodes:
        publish(nodes.start("north"), range(30))
        wait_for_archive(nodes)
        nodes.stop("north")
        change_setting(kafka, f"{nodes.prefix}.queues", "retention.ms", "604800000")
        nodes.delete_archived(more=-3)
        plain = Nodes(tmp_path, kafka, nodes.prefix, NEVER)
        with pytest.raises(AssertionError, match=r"(?s)69: .*has retention.ms=604800000, and has to have -1"):
            plain.start("south")
        change_setting(kafka, f"{nodes.prefix}.queues", "retention.ms", "-1")
        begins = r"(?s)65: .* is at offset 0, but its log begins at \d+: .* start the node with --archive"
        with pytest.raises(AssertionError, match=begins):
            plain.start("south")
        change_setting(kafka, f"{nodes.prefix}.queues", "retention.ms", "604800000")
        south = nodes.start("south")
        assert take(south, QUEUES[0], 30) == numbered(range(30))
        publish(south, range(100))
        nodes.kill("south")
        nodes.delete_archived(more=10)
        with pytest.raises(AssertionError, match=r"(?s)69: .*begins at offset \d+, but is archived only up to \d+"):
            nodes.start("west")


@pytest.mark.rare
def test_b27_tools_read_below_the_start(kafka: KafkaCluster, tmp_path: Path) -> None:
    """`verify`, `rewind`, `events` and the past by HTTP: a node's directory names the archive, or --archive does."""
    with FloorNodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north = nodes.start("north")
        publish(north, range(20))
        [offset] = [
            each.next_offset for each in nodes.log().queues if partition_of("/", QUEUES[0], 2) == int(each.name[-1])
        ]
        for queue in QUEUES:
            take(north, queue, 20)
        nodes.digests()
        wait_for_archive(nodes)
        until(lambda: (tmp_path / "north" / "archive.json").exists(), "the node does not note its archive")
        nodes.delete_archived()
        kafka_options = ("--kafka", kafka.bootstrap, "--kafka-prefix", nodes.prefix)
        asked = ("rewind", QUEUES[0], "--offset", str(offset), "--formatter", "json", *kafka_options)
        for more in (("--archive", nodes.url), ("--data", str(tmp_path / "north"))):
            done = run(*asked, *more)
            assert done.returncode == 0, done.stderr
            assert [row["payload"] for row in json.loads(done.stdout)] == [str(number) for number in range(20)]
        assert run(*asked).returncode != 0
        with api_client(north) as client:
            found = client.get(f"/queues/%2F/{QUEUES[0]}/at", params={"offset": offset})
            assert found.status_code == 200, found.text
            assert len(found.json()["message_details"]) == 20
        nodes.start("east")
        nodes.stop("east")
        nodes.stop("north")
        (tmp_path / "north" / "archive.json").rename(tmp_path / "note")
        refused = run("verify", "--data", str(tmp_path / "north"), *kafka_options)
        assert refused.returncode == 69, refused.stdout + refused.stderr
        assert re.search(
            r"what lies below offset \d+ is no longer kept: name the archive that has it by --archive URL",
            refused.stderr,
        )
        (tmp_path / "note").rename(tmp_path / "north" / "archive.json")
        for name in ("north", "east"):
            verified = run("verify", "--data", str(tmp_path / name), *kafka_options)
            assert verified.returncode == 0, verified.stdout + verified.stderr
        done = run("events", "--partition", "queues-0", "--tail", "100", *kafka_options, "--archive", nodes.url)
        assert done.returncode == 0, done.stderr
        assert "QueueDeclared" in done.stdout
