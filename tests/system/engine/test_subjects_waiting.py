"""The first message of a subject waits until its key is on the disk: nothing of its connection overtakes it, and nobody
else waits (B-15)."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.projections import system_calls
from rewindmq.schemas.events import Published
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import Wire, method, publish
from tests.support.amqp_wire import properties as wire_properties

HERS, HIS = (wire_properties(headers={"who": name}) for name in ("ada", "bob"))
SECONDS = 60


class CountingKeys(KeyStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.made: list[str] = []

    def current(self, subject: str, day: str = "") -> tuple[str, bytes]:
        self.made.append(subject)
        return super().current(subject, day)


def made_by(broker: DoubleBroker) -> list[str]:
    """The subjects that keys were made for."""
    keys = broker.subjects.keys
    assert isinstance(keys, CountingKeys)
    return keys.made


class Disk:
    """Syncs wait until it is let go."""

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.goes.set()
        self._sync = system_calls.sync

    def sync(self, descriptor: int) -> None:
        assert self.goes.wait(SECONDS)
        self._sync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(system_calls, "sync", disk.sync)
    yield disk
    disk.goes.set()


@pytest.fixture
def broker(tmp_path: Path) -> DoubleBroker:
    broker = DoubleBroker()
    broker.subjects = Subjects("who", CountingKeys(tmp_path / "keys"), {})
    return broker


def connected(broker: DoubleBroker) -> Wire:
    wire = Wire(broker)
    wire.ask(1, "Queue.Declare", queue="q")
    return wire


def logged(broker: DoubleBroker) -> list[tuple[str, int]]:
    """Whose messages they are, and their sizes."""
    found = (event for event in broker.events if isinstance(event, Published))
    return [(event.encryption.subject if event.encryption else "", event.body_size) for event in found]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def whole(data: bytes) -> list[bytes]:
    return [data]


def by_bytes(data: bytes) -> list[bytes]:
    return [bytes((byte,)) for byte in data]


def large_frames(data: bytes) -> list[bytes]:
    return [data[:40], data[40:]]


@pytest.mark.parametrize("reads", [whole, by_bytes, large_frames])
@pytest.mark.parametrize("size", [0, 5])
def test_a_new_subjects_message_waits_for_its_key_and_stays_first(
    broker: DoubleBroker, disk: Disk, reads: Callable[[bytes], list[bytes]], size: int
) -> None:
    async def test() -> None:
        wire, other = connected(broker), connected(broker)
        wire.send(method(1, "Confirm.Select"), method(2, "Channel.Open"))
        disk.goes.clear()
        frames = publish(1, "", "q", b"a" * size, raw=HERS, piece=3)
        frames += publish(1, "", "q", b"plain") + publish(2, "", "q", b"another channel")
        frames += publish(1, "", "q", b"h" * (size + 1), raw=HIS) + publish(1, "", "q", b"again!", raw=HERS)
        for read in reads(frames):
            wire.send(read)
        assert wire.connection.gate.waiting
        other.send(publish(1, "", "q", b"nobody waits"))
        assert logged(broker) == [("", 12)]
        await asyncio.sleep(0)
        assert wire.read() == []
        disk.goes.set()
        await until(lambda: len(logged(broker)) == 6 and not wire.connection.gate.waiting)
        assert logged(broker)[1:] == [("ada", size), ("", 5), ("", 15), ("bob", size + 1), ("ada", 6)]
        acks = [said for said in wire.read() if said.name == "Basic.Ack"]
        assert (acks[-1].channel, acks[-1].delivery_tag) == (1, 4)
        assert made_by(broker) == ["ada", "bob"]

    run(test())


def test_of_many_connections_with_the_same_new_subject_one_makes_the_key(broker: DoubleBroker, disk: Disk) -> None:
    async def test() -> None:
        wires = [connected(broker) for _ in range(5)]
        disk.goes.clear()
        for number, wire in enumerate(wires):
            wire.send(publish(1, "", "q", b"x" * number, raw=HERS))
        disk.goes.set()
        await until(lambda: len(logged(broker)) == 5)
        assert sorted(logged(broker)) == [("ada", number) for number in range(5)]
        assert made_by(broker) == ["ada"]
        encryptions = {event.encryption for event in broker.events if isinstance(event, Published)}
        assert None not in encryptions
        assert len({encryption.key_id for encryption in encryptions if encryption}) == 1

    run(test())


def test_a_repeated_publish_waits_when_its_key_was_destroyed_meanwhile(broker: DoubleBroker, disk: Disk) -> None:
    """The shortest way of a publish into the log (frames.py): one comparison."""

    async def test() -> None:
        wire = connected(broker)
        hers = publish(1, "", "q", b"hers", raw=HERS)
        wire.send(hers * 4)
        await until(lambda: len(logged(broker)) == 4)
        assert wire.connection.parser.repeat is not None
        (key_id,) = await broker.subjects.erase("ada")
        disk.goes.clear()
        wire.send(hers, publish(1, "", "q", b"plain"))
        assert (wire.connection.gate.waiting, len(logged(broker))) == (True, 4)
        disk.goes.set()
        await until(lambda: len(logged(broker)) == 6)
        assert logged(broker)[4:] == [("ada", 4), ("", 5)]
        assert broker.events[-2].encryption.key_id != key_id

    run(test())


def test_a_message_whose_connection_ends_before_its_key_is_not_logged(broker: DoubleBroker, disk: Disk) -> None:
    async def test() -> None:
        wire, other = connected(broker), connected(broker)
        disk.goes.clear()
        wire.send(publish(1, "", "q", b"x", raw=HERS), publish(1, "", "q", b"y"))
        other.send(publish(1, "", "q", b"z", raw=HERS))
        wire.connection.lost()
        disk.goes.set()
        await until(lambda: logged(broker))
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert logged(broker) == [("ada", 1)]
        assert broker.events[-1].body != b"x"

    run(test())


def test_a_publish_that_can_have_no_key_closes_the_connection(broker: DoubleBroker, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    broker.subjects = Subjects("who", KeyStore(tmp_path / "file" / "keys"), {})

    async def test() -> None:
        wire = connected(broker)
        wire.send(publish(1, "", "q", b"secret", raw=HERS), publish(1, "", "q", b"after it"))
        await until(lambda: not wire.connection.gate.waiting)
        (said,) = wire.read()
        assert (said.name, said.reply_code, said.class_id, said.method_id) == ("Connection.Close", 506, 60, 40)
        assert logged(broker) == []

    run(test())


def test_a_commit_waits_for_all_its_keys_before_anything_of_it_is_logged(broker: DoubleBroker, disk: Disk) -> None:
    async def test() -> None:
        wire, other = connected(broker), connected(broker)
        wire.send(method(1, "Tx.Select"))
        disk.goes.clear()
        for body, raw in ((b"1", b"\0\0"), (b"22", HERS), (b"333", HIS), (b"4444", HERS)):
            wire.send(publish(1, "", "q", body, raw=raw))
        assert not wire.connection.gate.waiting
        wire.send(method(1, "Tx.Commit"), publish(1, "", "q", b"in the next one"))
        assert (wire.connection.gate.waiting, logged(broker)) == (True, [])
        other.send(publish(1, "", "q", b"other"))
        assert logged(broker) == [("", 5)]
        disk.goes.set()
        await until(lambda: not wire.connection.gate.waiting)
        assert logged(broker)[1:] == [("", 1), ("ada", 2), ("bob", 3), ("ada", 4)]
        assert [said.name for said in wire.read()] == ["Tx.CommitOk"]

    run(test())


def test_a_commit_whose_connection_ends_before_its_keys_does_nothing(broker: DoubleBroker, disk: Disk) -> None:
    async def test() -> None:
        wire = connected(broker)
        wire.send(method(1, "Tx.Select"))
        disk.goes.clear()
        wire.send(publish(1, "", "q", b"1"), publish(1, "", "q", b"22", raw=HERS), method(1, "Tx.Commit"))
        wire.connection.lost()
        disk.goes.set()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert logged(broker) == []

    run(test())
