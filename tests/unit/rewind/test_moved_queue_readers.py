"""Consumers of a queue's past while the queue moves to another partition: they go on there, without gap or repeat."""

import asyncio
from pathlib import Path

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.rewind.history_consumers import MessagesAtMoment
from rewindmq.schemas.events import QueueDeleted
from rewindmq.schemas.values import BROKER
from tests.support.amqp_wire import method, publish
from tests.support.deadlines import eventually
from tests.support.moving_clients import STILL_SECONDS, Client, Play, Q, declared, on_each_log, played
from tests.support.repartition import Steps


class Here:
    """Answers questions about the past in this process."""

    async def ask(self, question: MessagesAtMoment, _: str) -> object:
        return question.answer()

    def close(self) -> None:
        """Nothing is open."""


ACK_ALL = method(1, "Basic.Ack", delivery_tag=0, multiple=True)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    return played("embedded", tmp_path, monkeypatch)


async def reading(broker: Broker, prefetch: int, **arguments: str) -> Client:
    client = await Client.opened(broker)
    wanted = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    consume = method(1, "Basic.Consume", queue=Q, consumer_tag="t", arguments=wanted)
    client.send(method(1, "Basic.Qos", prefetch_count=prefetch) + consume)
    await client.hear("Basic.ConsumeOk")
    return client


async def heard(client: Client, *bodies: bytes) -> None:
    """Wait for these bodies, acking as they come, and make sure that they are all."""

    def all_came() -> bool:
        count = len(client.bodies())
        client.send(ACK_ALL)
        return count >= len(bodies)

    await eventually(all_came)
    await asyncio.sleep(STILL_SECONDS)
    assert client.bodies() == list(bodies)


@pytest.mark.parametrize("prefetch", [1, 100])
@pytest.mark.parametrize("start", ["first", "next"])
@on_each_log
async def test_a_reader_of_the_history_goes_on_where_its_queue_is(
    broker: Broker, steps: Steps, prefetch: int, start: str
) -> None:
    publisher = await Client.opened(broker)
    await declared(publisher, Q)
    reader = await reading(broker, prefetch, stream_offset=start)
    consumer = await Client.opened(broker)
    held = method(1, "Basic.Qos", prefetch_count=1) + method(1, "Basic.Consume", queue=Q, consumer_tag="c")
    consumer.send(held)
    publisher.send(*(publish(1, "", Q, b"%d" % number) for number in range(3)))
    await consumer.hear("Basic.Deliver")
    await steps.change()
    await steps.begin(Q)
    await steps.end(Q)
    later = await reading(broker, 100, stream_offset="next")
    publisher.send(publish(1, "", Q, b"3"))
    await heard(reader, b"0", b"1", b"2", b"3")
    consumer.send(method(1, "Basic.Nack", delivery_tag=1, requeue=True))  # it comes back where the queue was
    _, left = next((each, each.machine.queue("/", Q)) for each in broker.partitions if each.machine.queue("/", Q))
    await broker.repartition.leftovers.look(Work(broker.host.loop_share))
    await eventually(lambda: left is None or not left.messages_ready)
    publisher.send(publish(1, "", Q, b"4"))
    await heard(reader, b"0", b"1", b"2", b"3", b"4")
    await heard(later, b"3", b"4")
    reader.heard.clear()
    await reader.ask(method(1, "Basic.Cancel", consumer_tag="t"), "Basic.CancelOk")
    publisher.send(publish(1, "", Q, b"5"))
    await reader.hears_nothing("Basic.Deliver")


@on_each_log
async def test_a_reader_of_a_moment_reads_to_its_end_when_the_queue_has_moved(
    broker: Broker, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = await Client.opened(broker)
    await declared(publisher, Q)
    publisher.send(*(publish(1, "", Q, b"%d" % number) for number in range(3)))
    await steps.change()
    source, _ = steps.queue(Q)
    await eventually(lambda: source.durable_offset == source.next_offset)
    monkeypatch.setattr(broker.readings, "past", Here())
    reader = await reading(broker, 1, rewind_to="0s")
    await reader.hear("Basic.Deliver")
    await steps.begin(Q)
    await steps.end(Q)
    await source.ask(BROKER, QueueDeleted("/", Q, if_unused=False, if_empty=False))  # of what is left there
    await heard(reader, b"0", b"1", b"2")
    await reader.hear("Basic.Cancel")


@on_each_log
async def test_a_reader_ends_when_its_queue_is_deleted_in_its_new_place(broker: Broker, steps: Steps) -> None:
    publisher = await Client.opened(broker)
    await declared(publisher, Q)
    reader = await reading(broker, 10, stream_offset="next")
    await steps.change()
    await steps.begin(Q)
    await steps.end(Q)
    await reader.hears_nothing("Basic.Cancel")
    await publisher.ask(method(1, "Queue.Delete", queue=Q), "Queue.DeleteOk")
    await reader.hear("Basic.Cancel")
