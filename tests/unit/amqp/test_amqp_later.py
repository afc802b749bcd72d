"""Deliveries of large bodies whose turn comes later: the client has enough unread, and the bodies stay in the store."""

from typing import Any

import pytest

from rewindmq.engine.amqp.output import CROWDED
from tests.support.amqp_wire import Said, Wire, decoded, method, publish

SIZE = 400_000
COUNT = 10
CLOSE = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}


def body(number: int) -> bytes:
    return b"%02d" % number + bytes(SIZE)


def delivered(no_ack: bool = False) -> Wire:
    """A client with a large prefetch that has not read since it was given everything."""
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"))
    for number in range(COUNT):
        wire.send(publish(1, "", "q", body(number)))
    wire.connection.receive(method(1, "Basic.Qos", prefetch_count=100))
    wire.connection.receive(method(1, "Basic.Consume", queue="q", consumer_tag="c", no_ack=no_ack))
    wire.broker.turns.end()
    return wire


def in_memory(wire: Wire) -> int:
    return sum(len(part) for part in wire.connection.output.parts if isinstance(part, bytes | memoryview))


def read(wire: Wire) -> list[Said]:
    """Everything, as a socket that takes each write."""
    data = b""
    while parts := wire.connection.take_output():
        piece = b"".join(parts)
        assert len(piece) < 2 * CROWDED + SIZE
        data += piece
    return decoded(data)


def numbers(said: list[Said]) -> list[int]:
    return [int(each.body[:2]) for each in said if each.name == "Basic.Deliver" and each.body is not None]


def test_what_was_delivered_is_not_in_memory_and_comes_whole_and_in_order() -> None:
    wire = delivered()
    assert in_memory(wire) < CROWDED + 2 * SIZE
    wire.connection.receive(method(1, "Basic.Cancel", consumer_tag="c"))
    said = read(wire)
    assert [each.name for each in said] == [
        "Basic.QosOk",
        "Basic.ConsumeOk",
        *["Basic.Deliver"] * COUNT,
        "Basic.CancelOk",
    ]
    assert [each.body for each in said[2:-1]] == [body(number) for number in range(COUNT)]
    assert [each.delivery_tag for each in said[2:-1]] == list(range(1, COUNT + 1))
    assert wire.connection.output.later == 0


@pytest.mark.parametrize(("size", "count"), [(1_000, 3_000), (100_000, 40), (SIZE, COUNT)])
def test_a_prefetch_that_takes_in_a_whole_queue_reads_a_mebibyte_a_turn(
    size: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"))
    bodies = [b"%04d" % number + bytes(size) for number in range(count)]
    for each in bodies:
        wire.send(publish(1, "", "q", each))
    partition = wire.broker.partitions[0]
    message, octets = partition.message, [0]

    def counted(queue_id: int, message_id: int) -> Any:
        found = message(queue_id, message_id)
        octets[-1] += len(found.body)
        return found

    monkeypatch.setattr(partition, "message", counted)
    wire.connection.receive(method(1, "Basic.Qos", prefetch_count=10_000))
    wire.connection.receive(method(1, "Basic.Consume", queue="q", consumer_tag="c"))
    wire.broker.turns.end()
    data = b""
    while parts := wire.connection.take_output():
        data += b"".join(parts)
        octets.append(0)
    assert [each.body for each in decoded(data) if each.name == "Basic.Deliver"] == bodies
    assert max(octets) < CROWDED + 2 * size + 100


def test_nothing_is_read_for_a_socket_that_takes_no_more() -> None:
    wire = delivered()
    wire.connection.output.congested = True
    first = numbers(decoded(b"".join(wire.connection.take_output())))
    assert 0 < len(first) < COUNT
    assert wire.connection.take_output() == []
    woken = wire.socket.woken
    wire.connection.output.relieve()
    assert wire.socket.woken == woken + 1
    assert first + numbers(read(wire)) == list(range(COUNT))


@pytest.mark.parametrize("end", ["acked", "channel", "connection", "queue"])
def test_what_is_settled_unseen_is_not_said(end: str) -> None:
    wire = delivered()
    wire.connection.output.congested = True
    first = numbers(decoded(b"".join(wire.connection.take_output())))
    if end == "acked":
        wire.connection.receive(method(1, "Basic.Ack", delivery_tag=0, multiple=True))
    elif end == "channel":
        wire.connection.receive(method(1, "Channel.Close", **CLOSE))
    elif end == "connection":
        wire.connection.receive(method(0, "Connection.Close", **CLOSE))
    else:
        wire.broker.queues["q"].queue.gone = True
    wire.connection.output.congested = False
    said = read(wire)
    assert numbers(said) == []
    assert [each.name for each in said] == {"channel": ["Channel.CloseOk"], "connection": ["Connection.CloseOk"]}.get(
        end, []
    )
    assert first == list(range(len(first)))
    assert wire.connection.output.later == 0


def test_a_body_that_cannot_be_read_ends_the_connection_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = delivered()

    def missing(queue_id: int, message_id: int) -> Any:
        raise KeyError(message_id)

    monkeypatch.setattr(wire.broker.partitions[0], "message", missing)
    said = read(wire)
    assert 0 < len(numbers(said)) < COUNT
    assert any(call[0] == "undelivered" for call in wire.broker.calls)


def test_what_is_not_acked_has_to_be_in_memory() -> None:
    """It is forgotten when it is delivered. Such a consumer lives on credit, which bounds it."""
    wire = delivered(no_ack=True)
    assert wire.connection.output.later == 0
    assert numbers(wire.read()) == list(range(COUNT))
