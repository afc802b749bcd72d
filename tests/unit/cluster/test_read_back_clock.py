"""Kafka's clock is set forward and back: what nodes tell of it, and that timers fire all the same."""

import re
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.errors import NotImplementedByBroker
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import events_of, fold
from rewindmq.schemas.clock_events import ClockSet, ClockStepped
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor
from tests.support.async_tests import run_by
from tests.support.broker_harness import args
from tests.support.memory_nodes import PERSISTENT, Nodes, session, settled, watched

HOUR_MS = 3_600_000


class Story:
    """One node, `a`, that owns every partition. Its wall clock and Kafka's are set apart from the time that passes."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = Nodes(directory, monkeypatch)
        self.kafka_ms = 0  # Kafka's clock less the time that passed
        self.nodes.history.clock = lambda: self.nodes.now_ms + self.kafka_ms

    async def start(self, name: str = "a") -> Broker:
        self.broker = await self.nodes.start(name)
        for partition in self.broker.partitions:
            partition.owned = True
        return self.broker

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.nodes.now_ms += 1_000
            for broker in self.nodes.brokers.values():
                broker.turns.time_passed()
                broker.host.clock_watch.look()
            await settled()

    async def publish(self, body: bytes) -> None:
        who = session(self.broker)
        for to in self.broker.exchanges.route(who, "", "q", None):
            to.partition.publish(who.actor, Published(to.route, PERSISTENT, persistent=True, body=body, body_size=3))
        await settled()

    @property
    def partition(self) -> ReadBackPartition:
        partition = self.broker.queues.partition_for("/", "q")
        assert isinstance(partition, ReadBackPartition)
        return partition

    def ready(self) -> int:
        queue = self.broker.queues.get("/", "q")
        assert queue is not None
        return queue.messages_ready

    def told(self) -> list[Any]:
        log = next(each for each in self.nodes.history.queues if each.name == self.partition.name)
        return [each[3] for each in events_of(log) if isinstance(each[3], ClockStepped | ClockSet)]


def run(test: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        story = Story(tmp_path, monkeypatch)
        try:
            await story.start()
            await story.broker.queues.declare(
                session(story.broker), "q", False, True, False, False, args(x_message_ttl=30_000)
            )
            await test(story)
            for partition in story.broker.partitions:  # the live state is the history's
                partition.machine.validate()
                again = Machine(partition.name)
                fold(again, next(each for each in story.nodes.history.queues if each.name == partition.name))
                assert (again.digest(), again.clock_ms, again.ahead_ms) == (
                    partition.machine.digest(),
                    partition.machine.clock_ms,
                    partition.machine.ahead_ms,
                )
        finally:
            story.nodes.close()

    watched(whole())


in_story = run_by(run, "tmp_path", "monkeypatch", given=1)  # test(story)


@in_story
async def test_when_kafkas_clock_goes_back_timers_fire_in_time(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    await story.run(5)
    await story.publish(b"one")
    await story.run(3)
    story.kafka_ms = -5 * HOUR_MS
    await story.publish(b"two")
    await story.run(29)
    assert story.ready() == 2, "none of them lost the three seconds for which the partition was idle"
    await story.run(3)
    assert story.ready() == 0
    kinds = [type(each) for each in story.told()]
    assert (kinds.count(ClockSet), kinds.count(ClockStepped)) == (1, 1)
    assert story.partition.machine.ahead_ms == pytest.approx(5 * HOUR_MS - 3_000, abs=10)
    told_ms = story.broker.host.clock_watch.difference_ms(story.partition)
    assert told_ms == pytest.approx(-5 * HOUR_MS, abs=1_100)  # as far as it is certain
    assert re.search("the time that Kafka gives to records is (5 h|4 h 59 min) behind this machine's", caplog.text)


@in_story
async def test_an_idle_partition_whose_clock_went_back_fires_too(story: Story) -> None:
    await story.publish(b"one")
    story.kafka_ms = -5 * HOUR_MS
    await story.run(29)
    assert story.ready() == 1
    await story.run(4)
    assert story.ready() == 0


@in_story
async def test_a_step_forward_is_told_and_back_again_nothing_waits(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    """All nodes fold the time that Kafka gives to records, so the step forward cannot be undone.

    But once the clock is right again, queues keep time."""
    await story.publish(b"one")
    story.kafka_ms = 5 * HOUR_MS
    await story.publish(b"two")
    assert story.ready() == 1
    await story.run(2)
    assert "the time that Kafka gives to records is 5 h ahead of this machine's wall clock" in caplog.text
    story.kafka_ms = 0
    await story.publish(b"three")
    await story.run(26)
    assert story.ready() == 2
    await story.run(7)
    assert story.ready() == 0
    assert story.partition.machine.log_ms == pytest.approx(story.nodes.now_ms, abs=10_000)
    assert story.broker.host.clock_watch.difference_ms(story.partition) == 0


@in_story
async def test_a_clock_that_keeps_going_back_floods_neither_log_nor_history(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    await story.publish(b"one")
    for _ in range(29):
        story.kafka_ms -= 60_000
        await story.publish(b"two")
        await story.run(1)
    assert story.ready() == 30
    await story.run(33)
    assert story.ready() == 0
    assert caplog.text.count("the time that Kafka gives") <= 3
    assert sum(isinstance(each, ClockStepped) for each in story.told()) <= 3
    assert sum(isinstance(each, ClockSet) for each in story.told()) <= 30


@in_story
async def test_a_nodes_own_clock_is_not_taken_for_kafkas(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    """The node's wall clock is wrong: it sees that they differ, and nothing happens to any queue."""
    await story.publish(b"one")
    clock = story.broker.host.clock_watch.clock
    right = clock.wall_ms
    clock.wall_ms = lambda: right() + 5 * HOUR_MS
    await story.run(25)
    assert story.ready() == 1
    assert "is 5 h ahead of the broker's time" in caplog.text
    assert "repair_clock" not in caplog.text
    await story.run(8)
    assert story.ready() == 0
    assert not any(isinstance(each, ClockSet) for each in story.told())


@in_story
async def test_no_repair_is_asked_of_kafka(story: Story) -> None:
    with pytest.raises(NotImplementedByBroker, match="the time in the log is Kafka's"):
        story.broker.host.clock_watch.repair(Actor("ops", 0))
