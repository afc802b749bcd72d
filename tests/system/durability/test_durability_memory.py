"""Memory is bounded: many clients send large bodies and never the last frame, against a real broker with a low limit.

The broker must stay near its limit (by /proc), tell them, serve a consumer meanwhile, and let publishing go on once it
has closed those that hold most.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pika
import pytest

from tests.support.deadlines import until
from tests.support.running import RunningBroker

LIMIT = 300_000_000
BODY = 134_217_728
CONNECTIONS = 12  # 1.6 GB of bodies
MESSAGES = 300
PIECE = b"\x03\x00\x01" + struct.pack(">I", 131_064) + b"x" * 131_064 + b"\xce"


def resident(broker: RunningBroker) -> int:
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


class Greedy(threading.Thread):
    """Sends a body less its last frame, as fast as it is read, and looks at what the broker says."""

    def __init__(self, broker: RunningBroker) -> None:
        super().__init__(daemon=True)
        parameters = pika.URLParameters(broker.amqp_url + "?heartbeat=0")
        self.connection = pika.BlockingConnection(parameters)
        self.connection.channel()
        self.socket: socket.socket = self.connection._impl._transport._sock
        self.said = b""
        self.stopping = False

    def run(self) -> None:
        self.socket.settimeout(0.2)
        data = pika.frame.Method(1, pika.spec.Basic.Publish(exchange="", routing_key="q")).marshal()
        data += pika.frame.Header(1, BODY, pika.BasicProperties()).marshal()
        pieces = BODY // 131_064
        try:
            while not self.stopping:
                if data:
                    try:
                        data = data[self.socket.send(data) :]
                    except TimeoutError:
                        self.listen()
                elif pieces:
                    data, pieces = PIECE, pieces - 1
                else:
                    self.listen()
        except OSError:
            pass

    def listen(self) -> None:
        try:
            got = self.socket.recv(4096)
        except TimeoutError:
            return
        if not got:
            raise ConnectionResetError
        self.said += got


@pytest.mark.long
def test_bodies_that_never_end_are_bounded(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker(
        tmp_path / "data", "--vm-memory-high-watermark", str(LIMIT), "--disk-free-limit", "1", "--partitions", "1"
    )
    parameters = pika.URLParameters(broker.amqp_url + "?heartbeat=0")
    told: list[str] = []
    most = 0
    with pika.BlockingConnection(parameters) as publisher, pika.BlockingConnection(parameters) as consumer:
        publisher.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        publisher.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        channel, consuming = publisher.channel(), consumer.channel()
        channel.queue_declare("work")
        for number in range(MESSAGES):
            channel.basic_publish("", "work", b"%d" % number)
        until(lambda: consuming.queue_declare("work", passive=True).method.message_count == MESSAGES, "not published")
        greedy = [Greedy(broker) for _ in range(CONNECTIONS)]
        for each in greedy:
            each.start()

        def more() -> bool:
            nonlocal most
            most = max(most, resident(broker))
            publisher.process_data_events(0)
            return True

        # held back: those with a body in part at once, the others with their next publish
        until(lambda: more() and any(b"low on memory" in each.said for each in greedy), "nobody was blocked")
        until(lambda: more() and b"publishing is held back: low on memory" in "".join(broker.errors).encode(), "no log")
        while not told:
            more()
            channel.basic_publish("", "work", b"more")
            time.sleep(0.05)
        assert told[0] == "low on memory"
        # a consumer drains meanwhile
        got: list[bytes] = []
        for method, _, body in consuming.consume("work", inactivity_timeout=30):
            assert method is not None, "the consumer was not served"
            got.append(body)
            consuming.basic_ack(method.delivery_tag)
            more()
            if len(got) == MESSAGES:
                break
        assert got == [b"%d" % number for number in range(MESSAGES)]
        # those that hold most are closed, and publishing goes on
        until(lambda: more() and any(b"had not come whole" in each.said for each in greedy), "nobody was closed")
        until(lambda: more() and "unblocked" in told, "connection.unblocked never came")
        for each in greedy:
            each.stopping = True
            each.join(10)
            each.socket.close()
        until(lambda: more() and resident(broker) < LIMIT and len(told) % 2 == 0, "memory did not go down")
        channel.confirm_delivery()
        channel.basic_publish("", "work", b"last")
    assert most < LIMIT + 250_000_000, f"{most} bytes with a limit of {LIMIT}"
    assert most < CONNECTIONS * BODY / 2
    assert "Traceback" not in "".join(broker.errors)


@pytest.mark.long
def test_large_messages_for_a_client_that_does_not_read_stay_in_the_store(
    tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    """A prefetch that holds the whole queue; the client takes its time, and gets all of it in order."""
    size, count = 5_000_000, 60
    broker = start_broker(tmp_path / "data", "--partitions", "1")
    parameters = pika.URLParameters(broker.amqp_url + "?heartbeat=0")
    with pika.BlockingConnection(parameters) as connection, pika.BlockingConnection(parameters) as other:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("", "q", b"%03d" % number + bytes(size), pika.BasicProperties(delivery_mode=2))
        before = resident(broker)
        slow = connection.channel()
        slow.basic_qos(prefetch_count=1_000)
        got: list[bytes] = []
        slow.basic_consume("q", lambda channel, method, properties, body: got.append(body))
        looking = other.channel()
        until(lambda: looking.queue_declare("q", passive=True).method.message_count == 0, "not delivered")
        assert resident(broker) < before + size * count / 3
        while len(got) < count:
            connection.process_data_events(30)
        assert [body[:3] for body in got] == [b"%03d" % number for number in range(count)]
        assert {len(body) for body in got} == {size + 3}
        slow.basic_ack(0, multiple=True)
    assert "Traceback" not in "".join(broker.errors)


@pytest.mark.parametrize(
    "option",
    [
        ("--vm-memory-high-watermark", "absolute:2"),
        ("--vm-memory-high-watermark", "0"),
        ("--disk-free-limit", "1000TB"),
    ],
)
def test_a_limit_that_is_passed_from_the_start(
    tmp_path: Path, start_broker: Callable[..., RunningBroker], option: tuple[str, str]
) -> None:
    """As an operator may try it out: consumers and declarations are served, publishers wait."""
    broker = start_broker(tmp_path / "data", *option, "--partitions", "1")
    told: list[str] = []
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        until(lambda: connection.process_data_events(0) or told, "connection.blocked never came")
        assert told == ["low on disk" if option[0] == "--disk-free-limit" else "low on memory"]
        name, enough = option[0].removeprefix("--").replace("-", "_"), "1" if "disk" in option[0] else "0.9"
        answer = httpx2.put(
            f"{broker.http_url}/api/nodes/rewindmq@localhost/limits/{name}",
            json={"value": enough},
            auth=("guest", "guest"),
            trust_env=False,
        )
        assert answer.status_code == 204
        until(lambda: channel.queue_declare("q", passive=True).method.message_count == 1, "publishing stands still")
