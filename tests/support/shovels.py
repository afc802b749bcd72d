"""`rewindmq shovel` as a process of its own, and brokers between which it moves."""

import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import DELIVERY_MODE, EXPIRATION, HEADERS, LAYOUT, OCTET, TIME, USER_ID, join
from tests.support.deadlines import until
from tests.support.pika_clients import count, take
from tests.support.running import ROOT, start_process

LONG_SECONDS = 60
# What clients in Python change: integers of other widths, both floats, a time in milliseconds, a text that is none, a
# name that is not UTF-8.
HARD_HEADERS = b"".join(
    (
        b"\x05shortu\xff\xff",
        b"\x03intI\xff\xff\xff\xff",
        b"\x04longl" + bytes(7) + b"\x05",
        b"\x05floatf" + struct.pack(">f", 2.5),
        b"\x06doubled" + struct.pack(">d", 0.1),
        b"\x04timeT" + (1_700_000_000_123).to_bytes(8, "big"),
        b"\x06binaryx\x00\x00\x00\x02\xff\xfe",
        b"\x04textS\x00\x00\x00\x02\xff\xfe",
        b"\x02\xff\xfeV",
        b"\x05tableF\x00\x00\x00\x04\x01at\x01",
    )
)
HARD_PROPERTIES = join(
    {bit: b"\x03" if kind == OCTET else b"\x04abcd" for bit, _, kind in LAYOUT}
    | {
        HEADERS: tables.with_length(HARD_HEADERS),
        DELIVERY_MODE: b"\x02",
        EXPIRATION: b"\x07" + b"3600000",
        TIME: (1_700_000_000_123).to_bytes(8, "big"),
        USER_ID: b"\x05guest",
    }
)


class Shovel:
    """The command, running. Its log goes to a file."""

    def __init__(self, home: Path, source: str, queue: str, destination: str, *options: str) -> None:
        self.log = home / f"shovel-{len(list(home.glob('shovel-*.log')))}.log"
        command = [sys.executable, "-m", "rewindmq", "shovel", "--src-uri", source, "--src-queue", queue]
        with self.log.open("ab") as log:
            self.process = start_process([*command, "--dest-uri", destination, *options], cwd=ROOT, stderr=log)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def ended(self) -> int:
        """Wait for its end. Returns the exit code."""
        try:
            return int(self.process.wait(LONG_SECONDS))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the shovel did not end: {self.said}") from None

    def stop(self) -> int:
        """End it as an operator does (SIGTERM). Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def channel_at(port: int, vhost: str = "/") -> Iterator[BlockingChannel]:
    """A channel with confirms on a connection of its own."""
    with closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, vhost))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def fill(channel: BlockingChannel, queue: str, numbers: Sequence[int], **properties: Any) -> None:
    """Declare the queue, and publish these numbers into it. They are there when it returns."""
    before = int(channel.queue_declare(queue, durable=True).method.message_count)
    faster = channel.connection.channel()  # pika's confirms come one by one
    for number in numbers:
        given = pika.BasicProperties(delivery_mode=2, message_id=f"{number}", **properties)
        faster.basic_publish("", queue, b"%d" % number, given)
    until(lambda: count(channel, queue) == before + len(numbers), f"not all came to {queue}")
    faster.close()


def emptied(channel: BlockingChannel, queue: str) -> list[tuple[Any, Any, bytes]]:
    """Take all that waits in the queue: methods, properties and bodies."""
    found: list[tuple[Any, Any, bytes]] = []
    while waiting := count(channel, queue):
        found += take(channel, queue, waiting)
        channel.basic_ack(found[-1][0].delivery_tag, multiple=True)
        channel.cancel()  # what came meanwhile goes back
    return found


def numbers_of(messages: Sequence[tuple[Any, Any, bytes]]) -> list[int]:
    return [int(body) for _, _, body in messages]


def firsts(numbers: Sequence[int]) -> list[int]:
    """The numbers without the repeats of those that came before."""
    return list(dict.fromkeys(numbers))
