"""An operator removes and moves messages, and pauses a queue: orders of many chunks, snapshots.

(B-38, B-39.) What comes of it is in transcripts/removal.txt and transcripts/pause.txt."""

import random

import pytest

from rewindmq.projections.machine.data import message_order
from rewindmq.projections.machine.data.message_order import Order
from rewindmq.projections.machine.events.removal import MOST_REMOVED, removable
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused
from tests.support.events_for_tests import Bench


def removal(*ids: int, moved: bool = False) -> MessageRemoved:
    way = ("x", "k") if moved else ("", "")
    return MessageRemoved("/", "q", tuple((message_id, message_id) for message_id in ids), "why", moved, *way)


@pytest.mark.parametrize("seed", range(40))
def test_b38_messages_are_cut_out_of_an_order_of_many_chunks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a list; sorted by id or not; what a store would have kept is the same afterwards."""
    monkeypatch.setattr(message_order, "CHUNK", 4)
    dice = random.Random(seed)
    ids = [2 * number for number in range(60)]
    unsorted = dice.random() < 0.5
    if unsorted:
        dice.shuffle(ids)
    order = Order(dice.random() < 0.5)
    for message_id in ids:
        order.append(message_id, message_id + 7, dice.choice((-1, 5)))
    known = list(order.items())
    for chunk in order.chunks:
        chunk.stored, chunk.dirty = True, False
    order.changed = []
    stored = {chunk.number: list(chunk.ids) for chunk in order.chunks}
    for _ in range(12):
        for _ in range(dice.randrange(3)):
            if known:
                assert order.take() == known.pop(0)
        wanted = sorted({dice.randrange(130) for _ in range(dice.randrange(1, 9))})
        assert order.among([1 << 70, -1], unsorted) == []  # no id of a log
        there = [each for each in known if each[0] in wanted]
        assert sorted(order.among(wanted, unsorted)) == sorted(each[0] for each in there)
        assert order.remove(wanted, unsorted) == there
        known = [each for each in known if each[0] not in wanted]
        assert list(order.items()) == known
        assert (order.count, order.expiring) == (len(known), sum(each[2] == 5 for each in known))
        if dice.random() < 0.5:
            message_id = 1_000 + len(ids)
            ids.append(message_id)
            order.append(message_id, 1, -1)
            known.append((message_id, 1, -1))
    for number in order.vanished:
        del stored[number]
    for chunk in order.changed:
        if chunk.dirty and len(chunk.ids) > 0:
            stored[chunk.number] = list(chunk.ids)
        elif chunk.dirty:
            stored.pop(chunk.number, None)
    kept = [message_id for number in sorted(stored, key=abs) for message_id in stored[number]]
    assert kept[order.start :] == [each[0] for each in known]


def test_a_queue_that_no_operator_touched_has_no_fields_about_operators() -> None:
    bench = Bench()
    bench.declare()
    bench.publish()
    assert all(b'"removed"' not in meta and b'"paused"' not in meta for _, meta, _ in bench.machine.pieces())


def test_b38_ranges_that_name_too_much_are_quarantined() -> None:
    bench = Bench()
    bench.declare()
    bench.publish()
    for ranges in (((0, MOST_REMOVED),), ((0, 1 << 62),), ((3, 2),)):
        assert bench.do(MessageRemoved("/", "q", ranges, reason="", moved=False, exchange="", routing_key="")) == [
            ("quarantine",)
        ]
    assert bench.queue().messages_ready == 1


def test_b38_b39_state_outlasts_a_snapshot() -> None:
    bench = Bench()
    bench.declare()
    first, second, third = bench.publish(), bench.publish(), bench.publish()
    bench.do(removal(first))
    bench.do(removal(third, moved=True))
    bench.do(QueuePaused("/", "q", ""))
    pieces = [(meta, chunks) for _, meta, chunks in bench.machine.pieces()]
    loaded = Machine.load("queues-0", bench.machine.head(), pieces)
    loaded.validate()
    assert loaded.digest() == bench.machine.digest()
    queue = loaded.queue("/", "q")
    assert queue is not None
    assert (queue.paused, queue.counters["removed"], queue.counters["moved"]) == (True, 1, 1)
    assert [(entry.message_id, entry.reason) for entry in queue.outbox.values()] == [(third, "moved")]
    assert removable(queue, [first, second, third]) == [second]
