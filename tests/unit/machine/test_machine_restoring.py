"""Restored messages: what they had been through, and once each under the name of a restoration (B-02)."""

import random
from itertools import pairwise
from typing import Any

import pytest

from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.restored_ids import is_restored, note_restored
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Origin
from tests.support.events_for_tests import VHOST, Bench, route


def origin(message_id: int, restore: str = "undo", count: int = 0, redelivered: bool = False) -> Origin:
    return Origin(
        VHOST,
        "q",
        queue_id=7,
        message_id=message_id,
        reason="restored",
        sequence=message_id,
        restore=restore,
        delivery_count=count,
        redelivered=redelivered,
    )


def restored(message_id: int, expiration_ms: int | None = None, **values: Any) -> Published:
    came_from = origin(message_id, **values)
    return Published(
        route("q"), b"\x00\x00", expiration_ms=expiration_ms, persistent=True, origin=came_from, body=b"x", body_size=1
    )


@pytest.mark.parametrize(("kind", "counted"), [("classic", 0), ("quorum", 3)])
def test_b02_a_restored_message_is_what_it_was(kind: str, counted: int) -> None:
    bench = Bench()
    bench.declare("q", kind)
    bench.do(restored(70, 500, count=3, redelivered=True))
    [message] = bench.queue("q").messages()
    assert (message.redelivered, message.delivery_count) == (True, counted)
    assert message.expires_ms == bench.machine.clock_ms + 500
    bench.machine.validate()


def test_b02_each_message_once_under_a_name() -> None:
    bench = Bench()
    bench.declare("q")
    for message_id in (70, 72, 71, 70, 72):
        bench.do(restored(message_id))
    assert bench.queue("q").messages_ready == 3
    assert bench.queue("q").counters["duplicates"] == 2
    bench.do(restored(70, restore="again"))
    assert bench.queue("q").messages_ready == 4
    machine = bench.machine
    loaded = Machine.load(machine.partition, machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    assert loaded.digest() == machine.digest()
    [queue] = loaded.queues()
    assert is_restored(queue, origin(71))
    assert not is_restored(queue, origin(73))
    assert not is_restored(queue, origin(71, restore="again"))


def test_the_ids_are_kept_as_ranges() -> None:
    rng = random.Random(7)
    for _ in range(200):
        queue = Queue(Declaration(VHOST, "q", 7, "classic"))
        ids = rng.sample(range(40), rng.randint(1, 40))
        for number, message_id in enumerate(ids):
            assert not is_restored(queue, origin(message_id))
            note_restored(queue, origin(message_id))
            assert all(is_restored(queue, origin(each)) == (each in ids[: number + 1]) for each in range(40))
        [ranges] = queue.restored.values()
        assert [each for first, last in ranges for each in range(first, last + 1)] == sorted(ids)
        assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))
