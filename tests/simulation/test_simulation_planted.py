"""Defects put in on purpose: the simulation must find each of them, and does not have to look for long."""

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.data.effects import Requeue
from rewindmq.projections.machine.data.message_word import REDELIVERED, SIZE_MASK
from rewindmq.projections.machine.events.settlement import give_back
from rewindmq.projections.store.projector import Projector
from tests.simulation.history import STEPS, Failure, check, history_of, run
from tests.support.needs import require_patchable

pytestmark = [pytest.mark.long, pytest.mark.of_pure]

TRIES = 150
# The world has a subclass of this class, so compiled code finds its methods by their names.
WATCHED = "rewindmq.projections.store.projector.Projector."


def forget_a_requeue(
    state: Any, queue: Any, holder: Any, ids: list[int], reason: str, effects: list[Any], requeued: bool = True
) -> None:
    """The last of several messages that come back is said to, and is lost."""
    give_back(state, queue, holder, ids[:-1] or ids, reason, effects, requeued)
    if len(ids) > 1:
        word = holder.held.pop(ids[-1])
        queue.messages_unacked -= 1
        queue.message_bytes_unacked -= word & SIZE_MASK
        queue.held_expiries.pop(ids[-1], None)
        if holder.limiter is not None:
            holder.limiter.outstanding -= 1
        effects.append(Requeue(queue, ids[-1:], holder.consumer, reason))


def leave_the_flag_out(
    state: Any, queue: Any, holder: Any, ids: list[int], reason: str, effects: list[Any], requeued: bool = True
) -> None:
    """Give messages back without the redelivered flag, so that they are delivered as if for the first time."""
    give_back(state, queue, holder, ids, reason, effects, requeued)
    for order in (queue.returned, queue.arrived):
        for chunk in order.chunks:
            for at in range(len(chunk.words)):
                chunk.words[at] &= ~REDELIVERED


def confirming(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Confirms go out with the effects."""

    def carry_out(partition: Any) -> None:
        original(partition)
        while partition._waiting:
            offset, confirms, first, count = partition._waiting.popleft()
            for sequence in range(first, first + count):
                confirms.confirm(sequence, offset in partition.refused)

    return carry_out


def write_at_once(partition: Any) -> None:
    """RocksDB gets ahead of the log."""
    if partition.projector.failed is not None:
        raise partition.projector.failed
    if partition._batch is None and not partition.effects:
        partition._prepare()
    if partition._batch is not None:
        partition._write()


def skip_deletes(projector: Projector, queue_id: int, message_ids: list[int]) -> None:
    """Bodies stay in RocksDB for ever."""


LOST = r"conservation|by account|were not forgotten|should not be there"
PLANTED: dict[str, tuple[str, Any, str]] = {  # what, where, how, and what is found first
    "a requeue is forgotten": ("rewindmq.projections.machine.events.settlement.give_back", forget_a_requeue, LOST),
    "a session's end forgets a message": (
        "rewindmq.projections.machine.events.queues.give_back",
        forget_a_requeue,
        LOST,
    ),
    "the redelivered flag is left out": (
        "rewindmq.projections.machine.events.queues.give_back",
        leave_the_flag_out,
        r"returned 1 times: redelivered\?",
    ),
    "a crash is taken for a clean stop": (
        "rewindmq.engine.embedded.start.ended_cleanly",
        lambda log: True,
        r"as new, and was given in life",
    ),
    "dead messages are delivered": (
        "rewindmq.projections.machine.events.delivery.expire_heads",
        lambda state, queue, effects: None,
        r"is delivered at .* died at|a dead message",
    ),
    "dead letters are taken in twice": (
        "rewindmq.projections.machine.events.publish.is_repeated",
        lambda queue, origin, relocated: False,
        r"taken in more than once",
    ),
    "dead letters are forgotten": (
        "rewindmq.engine.routing.dead_letters.Forwarder.recover",
        lambda self, partition, queue: None,
        r"not drained: .*outbox \[\d|arrived 0 times",
    ),
    "dead letters are sent too early": (
        "rewindmq.engine.routing.dead_letters.LetterSource.may_send",
        property(lambda source: bool(source.letters)),
        r"dead letter at .* by the log|a message that did not die|arrived 0 times",
    ),
    "the projector skips deletes": (
        "rewindmq.projections.store.projector.Projector.delete",
        skip_deletes,
        r"RocksDB is not what the log says.*should not be",
    ),
    "the store gets ahead of the log": (
        "rewindmq.engine.partition.partition.Partition.project",
        write_at_once,
        r"StoreError: .* its log ends at",
    ),
    "confirms do not wait for the disk": (
        "rewindmq.engine.partition.partition.Partition.carry_out",
        confirming(Partition.carry_out),
        r"confirmed before it was durable",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_defect_is_found(what: str) -> None:
    target, replacement, expected = PLANTED[what]
    found = finding(target, replacement)
    assert re.search(expected, found), f"{what}; found: {found or f'nothing in {TRIES} histories'}"


def test_a_failure_tells_its_seed_and_the_shortest_history() -> None:
    target, replacement, _ = PLANTED["a requeue is forgotten"]
    require_patchable(target)
    with patch(target, replacement), pytest.raises(Failure) as failure:
        [check(seed) for seed in range(TRIES)]
    text = str(failure.value)
    assert re.match(r"seed (\d+): python -m pytest tests/simulation --seed \1\n", text)
    steps = re.search(r"^(\d+) of 100 steps are enough", text, re.MULTILINE)
    assert steps is not None
    assert int(steps[1]) <= 15
    assert "\npublish  0" in text


def test_a_seed_makes_one_history() -> None:
    one, other = run(7, history_of(7, STEPS), validate=False), run(7, history_of(7, STEPS), validate=False)
    assert one == other
    assert one.trace != run(8, history_of(8, STEPS), validate=False).trace


def finding(target: str, replacement: Any) -> str:
    """Return the first failure of the first `TRIES` seeds, or an empty text if none fails."""
    if not target.startswith(WATCHED):
        require_patchable(target)
    with patch(target, replacement):
        for seed in range(TRIES):
            try:
                run(seed, history_of(seed, STEPS), validate=False)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
    return ""
