"""RocksDB finds damage in its files when it compacts them: the broker makes the store anew and goes on."""

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.projections.store import keys
from rewindmq.projections.store.projector import Projector
from rewindmq.projections.store.rocks import Database
from rewindmq.projections.store.store import StateStore
from tests.support.broker_harness import Harness

BODIES = [b"%d " % number + random.Random(number).randbytes(20_000) for number in range(60)]
DAMAGED = range(10, 13)


@pytest.fixture
def h(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setattr("rewindmq.engine.broker.turns.STORE_RETRY_SECONDS", 0.01)
    with Harness(tmp_path / "data", partitions=2) as harness:
        yield harness


def with_damage(h: Harness) -> int:
    """A broker whose queue q has `BODIES`, and whose RocksDB has damaged some and found it out.

    Returns how many messages came after the damage."""
    later = 0
    session = h.session()
    h.declare(session, "q")
    h.declare(session, "gone")
    for body in BODIES:
        h.publish(session, "", "q", body)
    h.publish(session, "", "gone", b"m")
    h.settle()
    h.broker.queues.delete(session, "gone", False, False)
    partition_of(h).projector.quarantined(1, "Published", "nonsense")
    h.settle()
    h.in_loop(h.broker.close)
    flip(h.config.data / "state")
    h.broker = h.open(h.config)
    while database(h).failed is None:  # files are compacted when there are some
        later += 1
        assert later < 20, "RocksDB never read the damage"
        h.publish(h.session(), "", "q", b"later")
        h.settle()
        with contextlib.suppress(Exception):
            h.in_loop(partition_of(h).persist_all)
    return later


def flip(state: Path) -> None:
    """A byte in the middle of some bodies is another one."""
    found = 0
    for path in state.glob("*.sst"):
        content = bytearray(path.read_bytes())
        for number in DAMAGED:
            at = content.find(BODIES[number])
            if at >= 0:
                content[at + 10_000] ^= 0xFF
                found += 1
        path.write_bytes(content)
    assert found == len(DAMAGED)


def partition_of(h: Harness) -> Partition:
    found: Partition = h.broker.queues.partition_for("/", "q")
    return found


def database(h: Harness) -> Database:
    return partition_of(h).projector._db


def write(h: Harness) -> None:
    """Publish, and write what has changed to RocksDB."""
    for partition in h.broker.partitions:
        partition.prepare_soon = True
    session = h.session()
    h.publish(session, "", "q", b"more")
    h.settle()


def taken(h: Harness) -> list[bytes]:
    session, found = h.session(), []
    while (message := h.fetch(session, "q")) is not None:
        found.append(message.body)
    return found


def until_good(h: Harness) -> None:
    deadline = time.monotonic() + 60
    while "store" in h.broker.turns.problems:
        assert time.monotonic() < deadline, h.broker.turns.problems
        h.pass_time(1)
        time.sleep(0.01)


def test_publishing_goes_on_and_every_message_is_there(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    later = with_damage(h)
    write(h)
    until_good(h)
    assert h.broker.turns.blocked is None
    assert "RocksDB found damage in its files (Corruption: block checksum mismatch" in caplog.text
    assert (
        f"with {len(BODIES) - len(DAMAGED) + later + 1} bodies. {len(DAMAGED)} bodies could not be read" in caplog.text
    )
    write(h)
    h.restart()
    assert taken(h) == [*BODIES, *later * [b"later"], b"more", b"more"]


def test_the_new_store_has_the_state_and_nothing_else(h: Harness) -> None:
    later = with_damage(h)
    write(h)
    until_good(h)
    home = h.broker.queues.partition_for("/", "q")
    prefix = keys.partition_prefix(home.name)
    h.in_loop(h.broker.close)
    store = StateStore.open(h.config.data / "state")
    held = [keys.message_id_of(key) for key, _ in store.scan(prefix + b"M")]
    assert len(held) == len(BODIES) - len(DAMAGED) + later + 1
    assert [each.reason for each in store.quarantined(home.name).newest()] == ["nonsense"]
    again = Machine(home.name)
    fold(again, home.history, store.applied_offset(home.name))
    assert store.load(home.name).digest() == again.digest()
    store.close()
    assert not (h.config.data / "state.new").exists()
    h.broker = h.open(h.config)


def test_a_disk_that_takes_no_new_store_leaves_the_damaged_one(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = False

    class Refused(Projector):
        def write_whole(self) -> None:
            if refuse:
                raise OSError("No space left on device")
            super().write_whole()

    monkeypatch.setattr("rewindmq.projections.store.store.Projector", Refused)
    later = with_damage(h)
    refuse = True
    write(h)
    for _ in range(5):
        h.pass_time(1)
        time.sleep(0.02)
    assert "store" in h.broker.turns.problems
    assert not (h.config.data / "state.new").exists()
    refuse = False
    until_good(h)
    assert taken(h) == [*BODIES, *later * [b"later"], b"more"]
