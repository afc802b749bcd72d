"""`start --kafka --keep-history` (B-40): the owner of a partition trims it, while nodes run and are killed."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pika.exceptions
import pytest

from rewindmq.engine.keeping import keep_history
from rewindmq.engine.keeping.archive import pack
from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.progress import Kept
from rewindmq.engine.keeping.in_topics import topics_keeper
from rewindmq.engine.keeping.keep_history import KeepHistory
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.topic_floors import TopicFloors
from rewindmq.engine.keeping.trim import Trimming
from rewindmq.engine.log import chain
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.projections.rewind import At, state_at
from rewindmq.schemas.events import Checkpointed
from tests.support.deadlines import until
from tests.support.failpoints import armed, once
from tests.support.forked import run
from tests.support.hasty_trims import DIE
from tests.support.http_clients import api_client
from tests.support.kafka.archived_topics import (
    OWNED,
    TRIM_POINTS,
    Ticking,
    archive,
    log_of,
    require_trimmed,
    start_in_kafka,
    tiered,
    write_history,
)
from tests.support.kafka.archiving_nodes import KEPT, QUEUES, FloorNodes, backlog, take
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.hasty_nodes import HastyNode
from tests.support.kafka.sealed_topics import START_MS
from tests.support.pika_clients import connect
from tests.support.spark.histories import ANN
from tests.support.spark.topics import Writer, make_topics

pytestmark = pytest.mark.long

KEEP_MS = 100_000
FLOOR = 110  # the history is 212 seconds long, and a stretch has ten records
END_MS = START_MS + 211_000
LATER_MS = START_MS + 10**9


@pytest.fixture
def topics(kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, f"keep-{uuid.uuid4().hex[:12]}", 1)
    write_history(place)
    return place


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of ten records."""
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 10)
    monkeypatch.setattr(chain, "RUN", 10)


def keeper(
    place: InKafka,
    objects: Objects,
    node: Path,
    clock: Callable[[], float] | None = None,
    wall_ms: int = END_MS,
    owned: frozenset[str] = OWNED,
) -> KeepHistory:
    """Return the trimmer beside a node with this directory. By default its clock advances by a minute at each look."""
    node.mkdir(exist_ok=True)
    order = InKafka(place.bootstrap, place.prefix)
    made = topics_keeper(order, node, objects, KEEP_MS, lambda: None, clock or Ticking(), lambda: wall_ms)
    made.owned = owned
    return made


def look(keeping: KeepHistory) -> Kept:
    """The next look; the clock is ahead of it."""
    while (kept := keeping.look()) is None:
        pass
    return kept


def trimmed(keeping: KeepHistory) -> list[Kept]:
    """Looks until nothing more is due, behind the one that only notes the time."""
    looks = [look(keeping), look(keeping)]
    while looks[-1].trimmed:
        looks.append(look(keeping))
    return looks


def test_b40_the_owner_trims_what_is_older(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    archive(objects, topics)
    [whole] = log_of(topics).queues
    end = whole.next_offset
    digests = {at: state_at(whole, None, At(offset=at)).digest() for at in range(FLOOR, end + 1, 7)}
    first, second, *_ = looks = trimmed(keeper(topics, objects, tmp_path / "north"))
    assert (first.before_ms, first.trimmed) == (None, ())
    [event] = [event for each in looks for event in each.trimmed]
    assert (event.partition, event.offset, event.reason) == ("queues-0", FLOOR, "--keep-history 1m 40s")
    assert second.before_ms == START_MS + 211_000 - KEEP_MS
    assert second.freed_bytes > 0
    assert [each.error for each in looks] == [None] * len(looks)
    require_trimmed(topics, objects, FLOOR)
    partition = tiered(topics, objects)
    assert {at: state_at(partition, None, At(offset=at)).digest() for at in digests} == digests


def test_b40_stretch_by_stretch_with_the_archivers_turn_between(
    topics: InKafka, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(objects, topics)
    monkeypatch.setattr(keep_history, "STRETCH_BYTES", 1)
    monkeypatch.setattr(keep_history, "BASES", 0)
    looks = trimmed(keeper(topics, objects, tmp_path / "north"))
    assert [[event.offset for event in each.trimmed] for each in looks[1:-1]] == [[at] for at in range(10, 120, 10)]
    require_trimmed(topics, objects, FLOOR)


def test_b40_only_the_owner_trims(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    """A node that owns nothing notes the time, so that it may trim as soon as it owns a partition."""
    keeping = keeper(topics, objects, tmp_path / "south", owned=frozenset())
    assert look(keeping).error is None, "no node has begun the archive"
    archive(objects, topics)
    assert [each.trimmed for each in trimmed(keeping)] == [(), ()]
    assert start_in_kafka(topics) == Manifest.load(objects, "queues-0").floor == 0
    assert (tmp_path / "south" / "keep_history.json").exists()
    keeping.owned = OWNED
    assert [event.offset for event in look(keeping).trimmed] == [FLOOR]


def test_b40_a_clock_that_jumps_trims_nothing(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    """Kafka's clock, before the first look and behind it; and the node's own."""
    archive(objects, topics)
    seconds = 1_000.0
    noted = keeper(topics, objects, tmp_path / "noted", lambda: seconds, LATER_MS)
    noted.look()
    writer = Writer(topics)
    for number in range(30):
        writer.value(topics.queues, 0, LATER_MS + 1_000 * number, b"after a jump")
    writer.flush()
    archive(objects, topics)
    for number in range(3):
        seconds += 31
        kept = noted.look()
        assert kept is None or kept.before_ms is None or kept.before_ms <= START_MS + 211_000 + 62_000 * (number + 1)
    floor = start_in_kafka(topics)
    assert floor <= FLOOR + 2 * 31 * 3
    trimmed(keeper(topics, objects, tmp_path / "new", wall_ms=2 * LATER_MS))
    assert start_in_kafka(topics) == max(floor, FLOOR)
    trimmed(keeper(topics, objects, tmp_path / "behind", wall_ms=START_MS))
    assert start_in_kafka(topics) == max(floor, FLOOR)


class Killed(BaseException):
    """The process beside the node ends here."""


@pytest.mark.parametrize("point", TRIM_POINTS)
def test_b40_the_next_owner_ends_what_a_kill_cut_short(
    topics: InKafka, objects: Objects, tmp_path: Path, point: str
) -> None:
    archive(objects, topics)
    [whole] = log_of(topics).queues
    end = whole.next_offset
    digest = state_at(whole, None, At(offset=end)).digest()

    def killed() -> None:
        raise Killed

    with armed(point, killed), pytest.raises(Killed):
        trimmed(keeper(topics, objects, tmp_path / "north"))
    assert state_at(tiered(topics, objects), None, At(offset=end)).digest() == digest
    assert start_in_kafka(topics) in (0, FLOOR)
    trimmed(keeper(topics, objects, tmp_path / "south"))
    require_trimmed(topics, objects, FLOOR)
    assert state_at(tiered(topics, objects), None, At(offset=end)).digest() == digest


@pytest.mark.parametrize("point", ["trim.before_base", "trim.before_event", "trim.before_end"])
def test_b40_two_owners_at_once_do_no_harm(topics: InKafka, objects: Objects, tmp_path: Path, point: str) -> None:
    """Another node trims less, just as much, or more, in the middle of the trim of the first."""
    archive(objects, topics)
    [whole] = log_of(topics).queues
    end = whole.next_offset
    digest = state_at(whole, None, At(offset=end)).digest()
    north, south = keeper(topics, objects, tmp_path / "north"), keeper(topics, objects, tmp_path / "south")
    assert look(north).before_ms is None
    assert look(south).before_ms is None

    def meanwhile() -> None:
        assert look(south).error is None

    with armed(point, once(meanwhile)):
        kept = look(north)
    assert (kept.error, kept.stays) == (None, ())
    require_trimmed(topics, objects, FLOOR)
    assert state_at(tiered(topics, objects), None, At(offset=end)).digest() == digest


def test_b40_findings_stop_the_trim_until_a_person_decides(
    topics: InKafka, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(topics)
    writer.event(0, START_MS + 1_000 * 212, ANN, Checkpointed(211, "0" * 64))
    for number in range(200):
        writer.value(topics.queues, 0, START_MS + 1_000 * (213 + number), b"no record")
    writer.flush()
    archive(objects, topics)
    keeping = keeper(topics, objects, tmp_path / "north", wall_ms=LATER_MS)
    looks = trimmed(keeping)
    [(name, why)] = looks[-1].stays
    assert name == "queues-0"
    assert "the broker claimed 0000" in why, why
    assert "--accept-findings" in why, why
    assert start_in_kafka(topics) == Manifest.load(objects, "queues-0").floor == 0

    def again(*_: Any) -> None:
        raise AssertionError("the same stretch is audited again")

    monkeypatch.setattr(Trimming, "audit", again)
    assert look(keeping).stays == looks[-1].stays


def test_b40_while_the_archive_is_away_nothing_is_trimmed(
    topics: InKafka, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(objects, topics)
    keeping = keeper(topics, objects, tmp_path / "north")
    look(keeping)

    def away(self: Objects, *arguments: Any) -> Any:
        raise NoAnswer("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "create", away)
        kept = look(keeping)
    assert kept.error is not None
    assert "the store is away" in kept.error
    assert start_in_kafka(topics) == 0
    assert TopicFloors(log_of(topics).metadata).now() == {}
    looks = [look(keeping) for _ in range(2)]
    assert [each.error for each in looks] == [None, None]
    require_trimmed(topics, objects, FLOOR)


class TrimmingNodes(FloorNodes):
    """Nodes that archive, and keep four seconds of the history."""

    def options(self, name: str, bootstrap: str = "") -> tuple[str, ...]:
        return (*super().options(name, bootstrap), "--keep-history", "4s")

    def start(self, name: str, bootstrap: str = "", data: str = "") -> HastyNode:
        node = HastyNode(self.directory / (data or name), *self.options(name, bootstrap))
        self.running[name] = node
        return node

    def floors(self) -> list[int]:
        return [Manifest.load(open_objects(self.url), f"queues-{number}").floor for number in range(2)]


@pytest.fixture
def nodes(kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrimmingNodes]:
    monkeypatch.setenv(DIE, str(tmp_path / "die"))
    with TrimmingNodes(tmp_path, kafka) as nodes:
        yield nodes


def traffic(nodes: TrimmingNodes, ended: threading.Event) -> None:
    """Publish, and take what was published, at any node that runs."""
    while not ended.is_set():
        node = next(iter(nodes.running.values()), None)
        if node is None:
            time.sleep(0.1)
            continue
        with suppress(pika.exceptions.AMQPError, OSError), connect(node) as connection:
            channel = connection.channel()
            for queue in QUEUES:
                channel.queue_declare(queue, durable=True)
            while not ended.is_set():
                for queue in QUEUES:
                    for _ in range(20):
                        channel.basic_publish("", queue, b"." * 100)
                    channel.queue_purge(queue)
                connection.sleep(0.2)
        time.sleep(0.1)


def risen(nodes: TrimmingNodes, before: list[int]) -> bool:
    return sum(nodes.floors()) > sum(before)


def all_risen(nodes: TrimmingNodes, before: list[int]) -> bool:
    return all(now > then for now, then in zip(nodes.floors(), before, strict=True))


@pytest.mark.rare
@pytest.mark.timeout(600)
def test_b40_nodes_and_the_processes_beside_them_are_killed(nodes: TrimmingNodes) -> None:
    """In each step of a trim. Floors go on rising, nodes agree, and what is queued has its body."""
    north = nodes.start("north")
    nodes.start("south")
    backlog(north)
    ended = threading.Event()
    thread = threading.Thread(target=traffic, args=(nodes, ended), daemon=True)
    thread.start()
    try:
        until(lambda: all(nodes.floors()), "nothing is trimmed")
        die = nodes.directory / "die"
        for step in ("audited", "written", "appended", "deleting", "deleted", "entered", "removed"):
            die.write_text(f"{step} process")
            until(lambda: not die.exists(), f"no trim comes to {step}")
            before = nodes.floors()
            until(partial(risen, nodes, before), f"no trim behind a kill: {step}")
        for name in ("south", "north"):
            nodes.kill(name)
            nodes.start(name)
            before = nodes.floors()
            until(partial(all_risen, nodes, before), f"not all is trimmed behind the kill of {name}")
    finally:
        ended.set()
        thread.join()
    nodes.digests()
    nodes.start("east")
    nodes.digests()
    for number, queue in enumerate(KEPT):
        name = ("south", "east")[number]
        assert take(nodes.running[name], queue, 20) == [b"kept %d" % each for each in range(20)]
    for name in list(nodes.running):
        nodes.stop(name)  # else they trim what is being verified
    for partition in ("metadata-0", "queues-0", "queues-1"):
        assert [error for _, error in verify(open_objects(nodes.url), partition) if error] == []


@pytest.mark.rare
def test_b40_status_tells_the_limit_and_the_floors(nodes: TrimmingNodes) -> None:
    north = nodes.start("north")
    backlog(north)
    ended = threading.Event()
    thread = threading.Thread(target=traffic, args=(nodes, ended), daemon=True)
    thread.start()
    until(lambda: all(nodes.floors()), "nothing is trimmed")
    ended.set()
    thread.join()
    with api_client(north) as client:
        until(lambda: len(client.get("/overview").json()["history"]["trims"]["floors"]) == 2, "no floors are told")
    status = run("status", REWINDMQ_URL=north.http_url).stdout
    assert "Kept history: 4s, what is older than " in status, status
    assert "History of queues-1 begins at offset " in status, status
    assert "the history is trimmed below offset" in "".join(north.errors)
    nodes.stop("north")


def test_b40_a_trim_needs_the_archive(tmp_path: Path) -> None:
    refused = run("start", "--kafka", "127.0.0.1:1", "--data", str(tmp_path / "data"), "--keep-history", "400d")
    assert refused.returncode == 64
    assert "--keep-history with --kafka needs --archive URL" in refused.stderr, refused.stderr
    assert not (tmp_path / "data").exists()
