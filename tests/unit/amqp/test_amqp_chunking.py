"""However the stream is cut into reads, the outcome is the same; whatever is in it, the answer is AMQP's."""

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.amqp.connection_state import ConnectionState
from rewindmq.schemas.events import Acked, Nacked, Published
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import HANDSHAKE, Wire, decoded, method, properties, publish, raw_frame
from tests.support.examples import examples

RAWS = [properties(), properties(delivery_mode=2, headers={"a": "b"}), properties(expiration="5", priority=3)]

publishes = st.builds(
    lambda times, channel, key, size, raw, piece, mandatory: (
        times
        * publish(
            channel, "", key, bytes(n % 256 for n in range(size)), mandatory=mandatory, raw=RAWS[raw], piece=piece
        )
    ),
    st.sampled_from([1, 1, 2, 5]),
    st.sampled_from([1, 2]),
    st.sampled_from(["q", "r", "nowhere"]),
    st.sampled_from([0, 1, 5, 300]),
    st.integers(0, 2),
    st.sampled_from([100, 4000]),
    st.booleans(),
)
others = st.sampled_from(
    [
        method(1, "Basic.Get", queue="q"),
        method(2, "Basic.Get", queue="r", no_ack=True),
        raw_frame(8, 0, b""),
        method(1, "Basic.Consume", queue="r", consumer_tag="c"),
        method(2, "Basic.Consume", queue="q", consumer_tag="d", no_ack=True),
        method(1, "Basic.Ack", delivery_tag=1),
        method(1, "Basic.Ack", delivery_tag=0, multiple=True),
        method(1, "Basic.Nack", delivery_tag=2, requeue=True),
        method(1, "Queue.Purge", queue="q"),
        method(2, "Confirm.Select"),
        method(1, "Queue.Declare", queue="r"),
        method(2, "Channel.Close", reply_code=200),
        method(2, "Channel.Open"),
        method(1, "Queue.Declare", queue="nope", passive=True),
        method(1, "Channel.CloseOk"),
        method(1, "Basic.Recover", requeue=True),
        method(0, "Connection.Close", reply_code=200),
    ]
)
START = HANDSHAKE + b"".join(
    [
        method(1, "Channel.Open"),
        method(2, "Channel.Open"),
        method(1, "Queue.Declare", queue="q"),
        method(1, "Queue.Declare", queue="r"),
        method(1, "Confirm.Select"),
    ]
)


HELD = START + b"".join(
    [
        *(publish(1, "", name, b"m") for name in "qqqqrrqrqq" * 4),
        method(1, "Basic.Consume", queue="q", consumer_tag="c"),
        method(1, "Basic.Consume", queue="r", consumer_tag="d"),
        method(1, "Basic.Consume", queue="q", consumer_tag="e"),
        method(2, "Basic.Consume", queue="q", consumer_tag="f"),
    ]
)
acks = st.builds(
    lambda channel, tags: b"".join(method(channel, "Basic.Ack", delivery_tag=tag) for tag in tags),
    st.sampled_from([1, 1, 1, 2]),
    st.one_of(
        st.builds(
            lambda first, count: range(first, first + count), st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 8)
        ),
        st.lists(st.integers(0, 34), max_size=6),
        st.permutations(range(1, 9)),
    ),
)
multiples_and_nacks = st.builds(
    lambda channel, verdict, tag: method(channel, verdict[0], delivery_tag=tag, **verdict[1]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from(
        [
            ("Basic.Ack", {"multiple": True}),
            ("Basic.Nack", {"multiple": True, "requeue": False}),
            ("Basic.Nack", {"requeue": True}),
            ("Basic.Reject", {"requeue": False}),
        ]
    ),
    st.integers(0, 34),
)


class Outcome:
    """The outcome of a stream of bytes. The broker's turn ends once, so that outcomes differ by the cutting alone.

    `before`: bytes that come first. The broker ends a turn behind them."""

    def __init__(self, chunks: list[bytes], before: bytes = b"") -> None:
        self.wire = Wire(DoubleBroker(partitions=2), opened=False)
        if before:
            self.wire.push(before)
        for chunk in chunks:
            self.wire.connection.receive(chunk)
        self.wire.broker.turns.end()
        self.raw = self.wire.read_raw()

    def logged(self) -> list[tuple[Any, ...]]:
        """The events, settlements message by message (how many share an event depends on the reads)."""
        found: list[tuple[Any, ...]] = []
        for event in self.wire.broker.events:
            if isinstance(event, Published):
                facts = (event.body, event.expiration_ms, event.priority, event.persistent)
                found.append((event.route.routing_key, event.route.queues, event.properties, *facts))
            elif isinstance(event, Acked | Nacked):
                method_name = "ack" if isinstance(event, Acked) else event.method
                for first, last in event.messages:
                    found += [(event.consumer, method_name, number) for number in range(first, last + 1)]
            else:
                found.append((event,))
        return found

    def unacked(self) -> list[list[int]]:
        """The unacked delivery tags of each channel that is open."""
        return [list(channel.settlement.unacked) for channel in self.wire.connection.channels.values()]


def in_order(logged: list[tuple[Any, ...]], frames: list[bytes]) -> list[tuple[Any, ...]]:
    """The events as far as their order is promised: all of it within a channel. A settlement may be logged before or
    behind what other channels sent in the same read, so with two channels settlements are a list of their own."""
    if len({frame[1:3] for frame in frames} - {bytes(2)}) < 2:
        return logged
    settlements = [fact for fact in logged if fact[1:2] in (("ack",), ("nack",), ("reject",), ("recover",))]
    return [fact for fact in logged if fact not in settlements] + sorted(settlements)


def by_consumer(logged: list[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], ...]:
    """The events as far as a read may not change them: acks commute, and so do the settlements of two consumers."""
    acked = sorted(fact for fact in logged if fact[1:2] == ("ack",))
    returned = sorted((fact for fact in logged if fact[1:2] in (("nack",), ("reject",))), key=lambda fact: fact[0])
    return acked, returned, [fact for fact in logged if fact not in acked and fact not in returned]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(publishes | others, max_size=25), st.data())
def test_any_chunking_gives_the_same_result(frames: list[bytes], data: st.DataObject) -> None:
    stream = START + b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    whole = Outcome([stream])
    cut = Outcome([stream[a:b] for a, b in pairwise(edges)])
    assert decoded(cut.raw) != []
    assert cut.raw == whole.raw
    assert in_order(cut.logged(), frames) == in_order(whole.logged(), frames)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.one_of(acks, acks, multiples_and_nacks, publishes), max_size=8), st.data())
def test_settlements_in_one_read_do_what_each_does_in_its_own(frames: list[bytes], data: st.DataObject) -> None:
    """Repeated and unknown tags among them, and tags of other consumers, queues and channels."""
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    ways = [
        [stream],
        [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])],
        [stream[at : at + 21] for at in range(0, len(stream), 21)],  # an ack has 21 bytes
    ]
    whole, *others = [Outcome(chunks, HELD) for chunks in ways]
    for cut in others:
        assert cut.raw == whole.raw
        assert by_consumer(cut.logged()) == by_consumer(whole.logged())
        assert cut.unacked() == whole.unacked()


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(publishes | others, max_size=6))
def test_byte_by_byte(frames: list[bytes]) -> None:
    stream = START + b"".join(frames)
    whole, cut = Outcome([stream]), Outcome([stream[n : n + 1] for n in range(len(stream))])
    assert cut.raw == whole.raw
    assert in_order(cut.logged(), frames) == in_order(whole.logged(), frames)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(publishes | others, min_size=1, max_size=12), st.data())
def test_damaged_streams_end_in_an_amqp_close(frames: list[bytes], data: st.DataObject) -> None:
    """Flipped, inserted and deleted bytes: never an exception, never 541 (a defect of ours)."""
    stream = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(stream) - 1)))
        kind = data.draw(st.sampled_from(["flip", "insert", "delete", "cut"]))
        if kind == "flip" and stream:
            stream[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "insert":
            stream[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        elif kind == "delete":
            del stream[at : at + data.draw(st.integers(1, 8))]
        else:
            del stream[at:]
    outcome = Outcome([START, bytes(stream)])
    for each in decoded(outcome.raw):
        if each.name in ("Connection.Close", "Channel.Close"):
            assert each.reply_code != 541, each
    assert outcome.wire.connection.state in (
        ConnectionState.RUNNING,
        ConnectionState.CLOSING,
        ConnectionState.LEFT,
        ConnectionState.CLOSED,
    )


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200))
def test_noise_after_the_handshake(noise: bytes) -> None:
    outcome = Outcome([START, noise])
    closes = [each for each in decoded(outcome.raw) if each.name == "Connection.Close"]
    assert all(each.reply_code in (501, 502, 503, 504, 505) for each in closes)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=60))
def test_noise_instead_of_the_handshake(noise: bytes) -> None:
    Outcome([noise])
