"""Repartition of an embedded log: partitions are made at the next start, queues are placed anew, and move."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded import directory as layout
from rewindmq.engine.log.embedded.directory import read_layout
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.placement import moves
from rewindmq.engine.placement.request import NEVER, NODES, Progress, progress_of
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.broker_harness import Client, Harness, args, refusal
from tests.support.harness_repartition import NAMES, ask, bodies, expected, filled, home, moved, until_done

MOVING = [name for name in NAMES if partition_of("/", name, 2) != partition_of("/", name, 5)]
KEPT = [name for name in NAMES if name not in MOVING]


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data") as harness:
        yield harness


def progress(h: Harness) -> Progress:
    return h.loop.run_until_complete(progress_of(h.broker.repartition, Work(h.broker.host.loop_share)))


def test_b76_b77_queues_move_to_partitions_that_were_added(h: Harness) -> None:
    filled(h, NAMES)
    assert progress(h).phase == NEVER
    ask(h, 5)
    assert progress(h).phase == NODES
    assert len(h.broker.partitions) == 2
    assert read_layout(h.config.data) == 2
    h.restart()
    assert len(h.broker.partitions) == 5
    until_done(h)
    for name in NAMES:
        assert home(h, name) == partition_of("/", name, 5)
        assert bodies(h, name) == expected(name), name
    found = progress(h)
    assert (found.moved, found.staying, found.wanted, found.placed_by) == (len(MOVING), 0, 5, 5)
    h.until(lambda: h.broker.repartition.leftovers.left() == 0, "what is left of queues stays for ever")
    digests = h.digests()
    h.restart()
    assert h.digests() == digests
    for name in NAMES:
        assert bodies(h, name) == expected(name), name


def test_b77_every_message_keeps_what_it_has(h: Harness) -> None:
    name = MOVING[0]
    session, client = h.session(), Client()
    h.declare(session, name, arguments=args(x_max_priority=5))
    for number in range(4):
        h.publish(session, "", name, b"%d" % number, expiration_ms=60_000 if number == 0 else None)
    h.settle()
    consumer = h.consume(session, name, client, prefetch=2)
    h.settle()
    h.nack(session, consumer, client.deliveries[0][1], requeue=True)
    h.nack(session, consumer, client.deliveries[1][1], requeue=True)
    h.settle()
    h.in_loop(lambda: h.broker.sessions.close(session))
    h.settle()
    before = [(each.redelivered, each.delivery_count, each.expires_ms) for each in moved(h, name).messages()]
    assert [each[0] for each in before] == [True, True, False, False]
    ask(h, 5)
    h.restart()
    until_done(h)
    after = [(each.redelivered, each.delivery_count, each.expires_ms) for each in moved(h, name).messages()]
    assert after == before
    assert bodies(h, name) == [b"0", b"1", b"2", b"3"]
    h.pass_time(60_001)
    assert bodies(h, name) == [b"1", b"2", b"3"]


def test_b76_new_queues_are_placed_by_the_new_number_and_streams_stay(h: Harness) -> None:
    session = h.session()
    h.declare(session, MOVING[0], arguments=args(x_queue_type="stream"))
    ask(h, 5)
    h.restart()
    until_done(h)
    assert home(h, MOVING[0]) == partition_of("/", MOVING[0], 2)
    assert progress(h).reasons == {"it is a stream": 1}
    assert home(h, MOVING[1]) == partition_of("/", MOVING[1], 5)
    ask(h, 7)  # a stream that stays is in nobody's way
    h.restart()
    until_done(h)
    assert (progress(h).placed_by, home(h, MOVING[0])) == (7, partition_of("/", MOVING[0], 2))


def test_b76_a_name_moves_soon_after_what_kept_it_is_gone(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "SOON_SECONDS", 0.0)
    h.declare(h.session(), MOVING[0], arguments=args(x_queue_type="stream"))
    ask(h, 5)
    h.restart()
    until_done(h)
    assert progress(h).staying == 1
    h.broker.queues.delete(h.session(), MOVING[0], False, False)
    until_done(h)
    assert (progress(h).staying, home(h, MOVING[0])) == (0, partition_of("/", MOVING[0], 5))


def test_a_queue_does_not_move_to_a_partition_of_an_older_machine_version(h: Harness) -> None:
    """That one would refuse it."""
    name = MOVING[0]
    h.declare(h.session(), name, arguments=args(x_queue_type="stream"))
    ask(h, 5)
    h.restart()
    until_done(h)
    found = h.broker.repartition.moves
    assert found.why_not_now(("/", name)) == "it is a stream"
    h.queue(name).version = MACHINE_VERSION + 1
    assert found.why_not_now(("/", name)) == moves.NOT_UPGRADED


def test_what_cannot_be_asked_for(h: Harness) -> None:
    def refused(partitions: int, text: str) -> None:
        with refusal(PreconditionFailed, text):
            ask(h, partitions)

    refused(2, "queues are placed by 2 partitions, and their number only grows")
    refused(1_025, "a log has 1 to 1024 partitions")
    ask(h, 5)
    refused(6, "a repartition to 5 partitions is under way: wait until it is done")
    ask(h, 5)
    assert progress(h).waits_for == [h.config.node]


def test_partitions_that_a_crash_left_half_made_are_completed(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(h, NAMES[:2])
    ask(h, 5)
    h.in_loop(h.broker.close)

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("rewindmq.engine.log.embedded.log.write_layout", fails)
        with pytest.raises(LogError, match="can't get more partitions"):
            h.open(h.config)
    assert layout.partition_directory(h.config.data, "queues-4").is_dir()
    assert read_layout(h.config.data) == 2
    h.broker = h.open(h.config)
    assert read_layout(h.config.data) == 5
    assert not (h.config.data / "log" / layout.GROWING).exists()
    until_done(h)
    assert [bodies(h, name) for name in NAMES[:2]] == [expected(name) for name in NAMES[:2]]


def test_a_number_says_nothing_after_a_repartition(tmp_path: Path) -> None:
    with Harness(tmp_path / "data", partitions=2) as h:
        ask(h, 5)
        h.restart()
        assert len(h.broker.partitions) == 5
        h.restart()
        assert len(h.broker.partitions) == 5


def test_without_a_repartition_another_number_is_refused(tmp_path: Path) -> None:
    with Harness(tmp_path / "data", partitions=2) as h:
        h.settle()
    with pytest.raises(
        LogError, match="made with 2 queue partitions, and a log keeps its number; this start asks for 3"
    ):
        Harness(tmp_path / "data", partitions=3)
    EmbeddedLog.open(tmp_path / "data", 2).close()
