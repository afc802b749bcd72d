"""Publishes that are alike, in one read: a broker does with them what it does with each by itself."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from rewindmq.engine.amqp.connection import Connection
from rewindmq.projections.machine.data.effects import Deliver, Effect
from rewindmq.projections.replay import events_of
from rewindmq.projections.store.bodies import Body
from rewindmq.projections.store.projector import Projector
from rewindmq.schemas.events import Published
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method, publish
from tests.support.broker_harness import Harness

SIZES = [1, 5, 5, 300, 300, 2, 4_000, 77, 77, 0, 1, 9, 9, 9, 8_200, 3, 60_000, 12, 12, 12, 12]
BODIES = [bytes([at]) * size for at, size in enumerate(SIZES)]
WIDTH = pytest.mark.parametrize("together", [True, False], ids=["in one read", "one by one"])


class Client:
    """A connection with one channel, and all that the broker has said to it."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        broker = harness.broker._broker
        self.connection = harness.in_loop(lambda: Connection(broker, "client:1", True, IdleSocket()))
        self.said: list[Said] = []
        harness.in_loop(partial(self.connection.receive, HANDSHAKE + method(1, "Channel.Open")))
        harness.until(self.is_open)

    def is_open(self) -> bool:
        self.take()
        return any(each.name == "Channel.OpenOk" for each in self.said)

    def take(self) -> bool:
        """Take what the broker says. Returns True if more may follow."""
        self.said += decoded(b"".join(self.connection.take_output()))
        granted = self.connection.grant_credit()
        self.connection.broker.turns.end()
        return granted or bool(self.connection.output.parts)

    def say(self, frames: bytes) -> list[Said]:
        """Send these frames in one read. Returns what the broker says, confirms included."""
        self.said = []
        self.harness.in_loop(partial(self.connection.receive, frames))
        self.harness.settle()
        while self.harness.in_loop(self.take):
            self.harness.settle()
        return self.said

    def publish(self, bodies: list[bytes], together: bool, raw: bytes = b"\x10\x00\x02") -> list[Said]:
        frames = [publish(1, "", "q", body, raw=raw, piece=100_000) for body in bodies]
        return self.say(b"".join(frames)) if together else [said for frame in frames for said in self.say(frame)]


def runs_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of messages that each effect delivers, where they are several."""
    noted: list[int] = []

    class Noting(Projector):
        def observe(self, effects: Sequence[Effect], published: Mapping[int, Body]) -> None:
            counts = [len(effect.message_ids) for effect in effects if isinstance(effect, Deliver)]
            noted.extend(count for count in counts if count > 1)
            super().observe(effects, published)

    monkeypatch.setattr("rewindmq.projections.store.store.Projector", Noting)
    return noted


def records_of(harness: Harness) -> list[bytes]:
    """The bodies of all publishes in the log, in the order of the log."""
    partitions = harness.broker.partitions
    events = [event for partition in partitions for *_, event in events_of(partition.history)]
    return [event.body for event in events if isinstance(event, Published)]


def declare(client: Client, **arguments: object) -> None:
    client.say(method(1, "Queue.Declare", queue="q", durable=True, arguments=arguments))


def confirmed(said: list[Said], names: tuple[str, ...] = ("Basic.Ack", "Basic.Nack")) -> dict[int, str]:
    """Return the answer to each publish, by its number."""
    told: dict[int, str] = {}
    below = 1
    for each in said:
        if each.name in names:
            numbers = range(below, each.delivery_tag + 1) if each.fields.get("multiple") else [each.delivery_tag]
            told |= {number: each.name for number in numbers if number not in told}
            while below in told:
                below += 1
    return told


@WIDTH
@pytest.mark.parametrize("no_ack", [True, False])
def test_messages_of_many_sizes_are_logged_confirmed_and_delivered(
    together: bool, no_ack: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of(monkeypatch)
    with Harness(tmp_path) as harness:
        client = Client(harness)
        declare(client)
        client.say(method(1, "Confirm.Select"))
        client.say(method(1, "Basic.Consume", queue="q", consumer_tag="c", no_ack=no_ack))
        said = client.publish(BODIES, together)
        delivered = [each for each in said if each.name == "Basic.Deliver"]
        assert [each.body for each in delivered] == BODIES
        assert [each.delivery_tag for each in delivered] == list(range(1, len(BODIES) + 1))
        assert confirmed(said) == dict.fromkeys(range(1, len(BODIES) + 1), "Basic.Ack")
        assert records_of(harness) == BODIES
        queue = harness.queue("q")
        held = 0 if no_ack else sum(SIZES)
        assert (queue.messages_ready, queue.message_bytes_unacked) == (0, held)
    assert (sum(runs) > len(BODIES) // 2) == together


@WIDTH
@pytest.mark.parametrize("channels", [(1, 2, 3), (1, 2, 1), (1, 1)])
def test_consumers_get_their_messages_in_turns(together: bool, channels: tuple[int, ...], tmp_path: Path) -> None:
    """The deliveries of each channel are in the order of their messages, also where two consumers share it."""
    with Harness(tmp_path) as harness:
        client = Client(harness)
        declare(client)
        for channel in {*channels} - {1}:
            client.say(method(channel, "Channel.Open"))
        for number, channel in enumerate(channels):
            client.say(method(channel, "Basic.Consume", queue="q", consumer_tag=f"c{number}"))
        said = client.publish(BODIES, together)
        for channel in channels:
            mine = [number for number, other in enumerate(channels) if other == channel]
            expected = [
                (f"c{at % len(channels)}", body) for at, body in enumerate(BODIES) if at % len(channels) in mine
            ]
            delivered = [each for each in said if each.name == "Basic.Deliver" and each.channel == channel]
            assert [(each.consumer_tag, each.body) for each in delivered] == expected
            assert [each.delivery_tag for each in delivered] == list(range(1, len(expected) + 1))


@WIDTH
@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_messages_that_wait_are_stored_in_their_order(together: bool, kind: str, tmp_path: Path) -> None:
    with Harness(tmp_path) as harness:
        client = Client(harness)
        declare(client, **{"x-queue-type": kind})
        client.publish(BODIES, together)
        assert harness.ready("q") == BODIES
        digests = harness.digests()
        harness.restart()
        assert harness.ready("q") == BODIES
        if kind == "stream":
            assert harness.digests() == digests


@WIDTH
def test_a_full_queue_refuses_the_messages_that_are_too_many(together: bool, tmp_path: Path) -> None:
    with Harness(tmp_path) as harness:
        client = Client(harness)
        declare(client, **{"x-max-length": 7, "x-overflow": "reject-publish"})
        client.say(method(1, "Confirm.Select"))
        said = client.publish([b"%d" % number for number in range(12)], together)
        expected = {number: "Basic.Ack" if number <= 7 else "Basic.Nack" for number in range(1, 13)}
        assert confirmed(said) == expected
        assert harness.ready("q") == [b"%d" % number for number in range(7)]


@WIDTH
def test_a_full_queue_drops_its_oldest_messages(together: bool, tmp_path: Path) -> None:
    with Harness(tmp_path) as harness:
        client = Client(harness)
        declare(client, **{"x-max-length-bytes": 20})
        client.publish([b"%04d" % number for number in range(12)], together)
        assert harness.ready("q") == [b"%04d" % number for number in range(7, 12)]


@WIDTH
def test_a_prefetch_ends_what_a_consumer_gets(together: bool, tmp_path: Path) -> None:
    with Harness(tmp_path) as harness:
        client = Client(harness)
        declare(client)
        client.say(method(1, "Basic.Qos", prefetch_count=5))
        client.say(method(1, "Basic.Consume", queue="q", consumer_tag="c"))
        said = client.publish([b"%d" % number for number in range(12)], together)
        assert [each.body for each in said if each.name == "Basic.Deliver"] == [b"%d" % number for number in range(5)]
        said = client.say(method(1, "Basic.Ack", delivery_tag=3, multiple=True))
        assert [each.body for each in said if each.name == "Basic.Deliver"] == [b"5", b"6", b"7"]


@WIDTH
def test_two_consumers_take_turns(together: bool, tmp_path: Path) -> None:
    with Harness(tmp_path) as harness:
        client = Client(harness)
        declare(client)
        for tag in ("a", "b"):
            client.say(method(1, "Basic.Consume", queue="q", consumer_tag=tag, no_ack=True))
        said = client.publish([b"%d" % number for number in range(8)], together)
        got = [(each.consumer_tag, each.body) for each in said if each.name == "Basic.Deliver"]
        assert got == [("ab"[number % 2], b"%d" % number) for number in range(8)]
