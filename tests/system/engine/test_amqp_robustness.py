"""Clients that are slow, silent, deaf, or want very much: the broker's memory stays bounded, and others are served.

The raw client sends what it likes and reads when it likes. `-m slow`: ten thousand connections and queues.
"""

import contextlib
import os
import resource
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.support.amqp_wire import HANDSHAKE, Said, decoded, method, publish, raw_frame
from tests.support.running import RunningBroker

MEBIBYTE = 1 << 20


def rss(broker: RunningBroker) -> int:
    """MiB of memory that the broker's process has now."""
    pages = int(Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // MEBIBYTE


class Raw:
    """A client by hand, connected, channel 1 open."""

    def __init__(self, broker: RunningBroker, buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(60)
        self.socket.connect((broker.host, broker.amqp_port))
        self.data = b""
        self.socket.sendall(HANDSHAKE + method(1, "Channel.Open"))
        self.until("Channel.OpenOk")

    def until(self, name: str) -> Said:
        """Read up to this method, which has no content; what came before it is left out."""
        while True:
            while len(self.data) >= 7:
                end = 8 + int.from_bytes(self.data[3:7], "big")
                if len(self.data) < end:
                    break
                frame, self.data = self.data[:end], self.data[end:]
                if frame[0] == 1 and (said := decoded(frame)[0]).name == name:
                    return said
            got = self.socket.recv(MEBIBYTE)
            assert got, f"closed before {name}"
            self.data += got

    def send_all_it_takes(self, frames: bytes, times: int, seconds: float = 2) -> int:
        """Send them so often, or until the broker takes no more for some seconds; how many octets went."""
        self.socket.settimeout(seconds)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(times):
                sent += self.socket.send(frames)
        self.socket.settimeout(60)
        return sent

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def deaf(broker: RunningBroker) -> Iterator[Raw]:
    client = Raw(broker, buffer=4096)
    yield client
    client.close()


@pytest.fixture
def others(broker: RunningBroker) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port))
    yield connection
    connection.close()


def served(others: pika.BlockingConnection) -> bool:
    """Others publish and get."""
    channel = others.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"hello")
    body = channel.basic_get(queue, auto_ack=True)[2]
    channel.close()
    return bool(body == b"hello")


def filled(others: pika.BlockingConnection, size: int, count: int) -> str:
    channel = others.channel()
    queue = str(channel.queue_declare(f"big-{uuid.uuid4().hex[:8]}", durable=True).method.queue)
    for _ in range(count):
        channel.basic_publish("", queue, os.urandom(size))
    channel.close()
    return queue


def emptied(others: pika.BlockingConnection, queue: str) -> None:
    others.channel().queue_delete(queue)


def test_a_body_of_ten_megabytes(broker: RunningBroker, others: pika.BlockingConnection) -> None:
    channel = others.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    body = os.urandom(10 * MEBIBYTE)
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_who_asks_and_never_reads(broker: RunningBroker, deaf: Raw, others: pika.BlockingConnection) -> None:
    """A thousand times basic.get of 4 MB, put back each time: a heap of 4 GB, were it made."""
    queue = filled(others, 4 * MEBIBYTE, 1)
    before = rss(broker)
    for tag in range(1, 1001):
        put_back = method(1, "Basic.Reject", delivery_tag=tag, requeue=True)
        deaf.socket.sendall(method(1, "Basic.Get", queue=queue) + put_back)
    assert served(others)
    assert rss(broker) - before < 150
    deaf.until("Basic.GetOk")  # and when it reads it gets what it asked for
    deaf.until("Basic.GetOk")
    emptied(others, queue)


def test_who_consumes_and_never_reads(broker: RunningBroker, deaf: Raw, others: pika.BlockingConnection) -> None:
    """Without a prefetch: it gets the first window of deliveries, and no more until it reads."""
    queue = filled(others, 50_000, 1_000)
    before = rss(broker)
    deaf.socket.sendall(method(1, "Basic.Consume", queue=queue, no_ack=True))
    for _ in range(20):
        assert served(others)
    assert rss(broker) - before < 50
    assert others.channel().queue_declare(queue, passive=True).method.message_count > 500
    emptied(others, queue)


def test_who_sends_and_never_reads(broker: RunningBroker, deaf: Raw, others: pika.BlockingConnection) -> None:
    """Its messages come back and fill the socket; then it is not read from either."""
    before = rss(broker)
    lost = publish(1, "", "nobody-has-that", b"x" * 100_000, mandatory=True)
    sent = deaf.send_all_it_takes(lost, 5_000)
    assert sent < 300 * MEBIBYTE
    assert served(others)
    assert rss(broker) - before < 150


def test_a_frame_that_comes_by_the_byte(broker: RunningBroker, others: pika.BlockingConnection) -> None:
    slow = Raw(broker)
    for byte in method(1, "Queue.Declare", queue="slowly", exclusive=True):
        slow.socket.sendall(bytes((byte,)))
        time.sleep(0.005)
    slow.until("Queue.DeclareOk")
    half = publish(1, "", "slowly", b"x" * 1000)
    slow.socket.sendall(half[:100])
    assert served(others)
    slow.socket.sendall(half[100:] + method(1, "Basic.Get", queue="slowly", no_ack=True))
    slow.until("Basic.GetOk")
    slow.close()


def test_a_body_of_frames_of_one_byte(broker: RunningBroker, others: pika.BlockingConnection) -> None:
    """The broker's memory grows by the size of the body, not by that of its frames."""
    patient, size = Raw(broker), 2 * MEBIBYTE
    before = rss(broker)
    whole = publish(1, "", "tiny", b"", piece=1)
    head = whole[: whole.index(b"\xce") + 1]
    header = raw_frame(2, 1, b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00")
    patient.socket.sendall(method(1, "Queue.Declare", queue="tiny", exclusive=True) + head + header)
    pieces = raw_frame(3, 1, b"x") * 4096
    for _ in range(size // 4096 - 1):
        patient.socket.sendall(pieces)
    assert served(others)
    assert rss(broker) - before < 40
    patient.socket.sendall(pieces + method(1, "Basic.Get", queue="tiny", no_ack=True))
    patient.until("Basic.GetOk")
    patient.close()


@pytest.mark.long
def test_a_thousand_channels_on_a_connection(broker: RunningBroker, others: pika.BlockingConnection) -> None:
    queue = others.channel().queue_declare("", exclusive=False, auto_delete=True).method.queue
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port))
    channels = [connection.channel() for _ in range(1_000)]
    for number, channel in enumerate(channels):
        channel.basic_publish("", queue, b"%d" % number)
    for channel in channels:
        channel.basic_consume(queue, lambda *_: None)
    for channel in channels[::2]:
        channel.close()
    assert served(others)
    connection.close()


# -- many, by hand ----------------------------------------------------------------------------------------------------

MANY = int(os.environ.get("MANY", "10000"))


@pytest.fixture
def descriptors() -> Iterator[int]:
    """As many as this process may have: how many clients there can be."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield min(MANY, before[1] - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_idle_connections(
    broker: RunningBroker, descriptors: int, others: pika.BlockingConnection
) -> None:
    memory, cpu, began = rss(broker), broker.cpu_seconds(), time.monotonic()
    clients = [Raw(broker) for _ in range(descriptors)]
    took, cost = time.monotonic() - began, broker.cpu_seconds() - cpu
    each = (rss(broker) - memory) * 1024 / descriptors
    cpu = broker.cpu_seconds()
    time.sleep(20)
    idle = (broker.cpu_seconds() - cpu) / 20
    assert served(others)
    print(
        f"{descriptors} connections with a channel: {took:.0f} s, {cost * 1e6 / descriptors:.0f} us CPU and {each:.1f}"
        f" KiB each; idle {idle:.1%} of a core; RSS {rss(broker)} MiB"
    )
    assert each < 100
    began = time.monotonic()
    for client in clients:
        client.close()
    assert served(others)
    print(f"all closed: {time.monotonic() - began:.1f} s; RSS {rss(broker)} MiB")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_queues(broker: RunningBroker, others: pika.BlockingConnection) -> None:
    memory, cpu, began = rss(broker), broker.cpu_seconds(), time.monotonic()
    client = Raw(broker)
    for number in range(MANY):
        client.socket.sendall(method(1, "Queue.Declare", queue=f"q{number}", durable=True, nowait=True))
    client.socket.sendall(method(1, "Queue.Declare", queue="q0", passive=True))
    client.until("Queue.DeclareOk")
    took, cost = time.monotonic() - began, broker.cpu_seconds() - cpu
    each = (rss(broker) - memory) * 1024 / MANY
    cpu = broker.cpu_seconds()
    time.sleep(20)
    idle = (broker.cpu_seconds() - cpu) / 20
    began, cpu = time.monotonic(), broker.cpu_seconds()
    for number in range(MANY):
        client.socket.sendall(publish(1, "", f"q{number}", b"m"))
    client.socket.sendall(method(1, "Queue.Declare", queue="q0", passive=True))
    client.until("Queue.DeclareOk")
    print(
        f"{MANY} queues: {took:.1f} s, {cost * 1e6 / MANY:.0f} us CPU and {each:.1f} KiB each; idle {idle:.1%} of a"
        f" core; a message into each: {time.monotonic() - began:.1f} s, {broker.cpu_seconds() - cpu:.1f} s CPU; RSS"
        f" {rss(broker)} MiB"
    )
    assert served(others)
    assert each < 50
    client.close()
