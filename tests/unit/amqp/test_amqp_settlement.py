"""Delivery tags to ranges of message ids, held against a list that is searched from the front."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewindmq.engine.amqp.settlement import DeliveryHolder, Settlement, ranges
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import Acked, Event
from rewindmq.schemas.values import Actor
from tests.support.partition_double import PartitionDouble


class Log(PartitionDouble):
    """A partition that only notes what is appended to it."""

    def __init__(self, queues: list[Queue]) -> None:
        super().__init__()
        self.events: list[Any] = []
        for queue in queues:
            self.knows(queue)

    def append(self, actor: Actor, event: Event) -> int:
        self.events.append(event)
        return len(self.events)


verdicts = st.sampled_from([None, ("nack", True), ("nack", False), ("reject", True), ("recover", True)])
steps = st.one_of(
    st.tuples(st.just("deliver"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("settle"), st.integers(0, 12), st.booleans(), verdicts),
    st.tuples(st.just("end of read")),
)


@given(st.lists(steps, max_size=60))
def test_settlement_against_a_naive_list(steps: list[Any]) -> None:
    queues = [Queue(Declaration("/", name, 0, "classic")) for name in "ab"]
    log = Log(queues)
    holders = [DeliveryHolder() for _ in range(3)]
    for number, holder in enumerate(holders):
        holder.attached(log, queues[number % 2], number + 1)
    settlement = Settlement(Actor("guest", 1))
    outstanding: list[tuple[int, int, int]] = []  # tag, holder, message id: in the order of the tags
    expected: list[tuple[int, Any, int]] = []
    next_id = 0
    for step in steps:
        if step[0] == "deliver":
            next_id += step[2]  # other events leave gaps
            settlement.last_tag += 1
            settlement.unacked[settlement.last_tag] = (holders[step[1]], next_id)
            outstanding.append((settlement.last_tag, step[1], next_id))
        elif step[0] == "settle":
            _, back, multiple, verdict = step
            tag = max(0, settlement.last_tag - back)
            known = [each[0] for each in outstanding]
            if tag in known or (tag == 0 and multiple):
                settlement.settle(tag, multiple, verdict)
                taken = [each for each in outstanding if each[0] == tag or (multiple and (tag == 0 or each[0] < tag))]
                outstanding = [each for each in outstanding if each not in taken]
                expected += [(holder + 1, verdict, message_id) for _, holder, message_id in taken]
            else:
                with pytest.raises(PreconditionFailed, match=f"^unknown delivery tag {tag}$"):
                    settlement.settle(tag, multiple, verdict)
        else:
            settlement.flush()
    settlement.flush()
    logged = []
    for event in log.events:
        verdict = None if isinstance(event, Acked) else (event.method, event.requeue)
        assert event.messages == tuple(sorted(event.messages))
        for first, last in event.messages:
            logged += [(event.consumer, verdict, number) for number in range(first, last + 1)]
    assert sorted(logged, key=str) == sorted(expected, key=str)
    assert [(tag, holders.index(h), m) for tag, (h, m) in settlement.unacked.items()] == outstanding
    for consumer in (1, 2, 3):  # what does not commute keeps its order
        order = [(v, number) for c, v, number in logged if c == consumer and v is not None]
        assert order == [(v, number) for c, v, number in expected if c == consumer and v is not None]


@given(st.lists(st.one_of(steps, st.tuples(st.just("acks"), st.lists(st.integers(0, 12), min_size=1))), max_size=60))
def test_acks_of_many_tags_do_what_each_of_them_does(steps: list[Any]) -> None:
    """The same events in the same order, and the same error; tags that the broker took back among them."""
    queues = [Queue(Declaration("/", name, 0, "classic")) for name in "ab"]
    logs, settlements, all_holders = [Log(queues), Log(queues)], [], []
    for log in logs:
        settlements.append(Settlement(Actor("guest", 1)))
        all_holders.append([DeliveryHolder() for _ in range(3)])
        for number, holder in enumerate(all_holders[-1]):
            holder.attached(log, queues[number % 2], number + 1)
    for number, step in enumerate(steps):
        errors = []
        for which, settlement in enumerate(settlements):
            last = settlement.last_tag
            try:
                if step[0] == "deliver":
                    settlement.last_tag += 1
                    settlement.unacked[last + 1] = (all_holders[which][step[1]], 10 * number + step[2])
                    if step[2] == 3:  # the broker takes it back
                        settlement.returned.add(last + 1)
                        del settlement.unacked[last + 1]
                elif step[0] == "settle":
                    settlement.settle(max(0, last - step[1]), step[2], step[3])
                elif step[0] == "end of read":
                    settlement.flush()
                elif which:
                    settlement.ack_each([max(0, last - back) for back in step[1]])
                else:
                    for back in step[1]:
                        settlement.settle(max(0, last - back), False, None)
                errors.append("")
            except PreconditionFailed as error:
                errors.append(error.text)
        assert errors[0] == errors[1]
        one, other = settlements
        assert [holder.pending for holder in all_holders[0]] == [holder.pending for holder in all_holders[1]]
        assert [(tag, m) for tag, (_, m) in one.unacked.items()] == [(tag, m) for tag, (_, m) in other.unacked.items()]
        assert one.returned == other.returned
    for settlement in settlements:
        settlement.flush()
    assert logs[0].events == logs[1].events


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_name_exactly_the_ids(ids: set[int]) -> None:
    found = ranges(list(ids))
    assert [number for first, last in found for number in range(first, last + 1)] == sorted(ids)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(found))
