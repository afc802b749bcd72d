"""A trial of a policy that ends early is the whole answer up to its offset (B-34)."""

from pathlib import Path

import pytest

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.rewind import what_if as module
from rewindmq.engine.rewind.outcomes import Deadline, OutOfTime
from rewindmq.engine.rewind.what_if import MEMORY, TIME, WhatIf, candidate_for, what_if
from rewindmq.projections.rewind import At
from tests.support.spark.histories import Recorder


class Ends(Deadline):
    """A deadline that is over after some looks."""

    def __init__(self, looks: int) -> None:
        super().__init__(1_000.0)
        self.looks = looks

    def check(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise OutOfTime


def recorded(data: Path) -> None:
    told = Recorder(data, partitions=1)
    told.declare("orders")
    for number in range(40):
        told.publish("orders", b"%d" % number)
        told.wait(10)
    told.purge("orders")
    told.publish("orders", b"last")
    told.close()


def tried(data: Path, end: int | None = None, deadline: Deadline | None = None) -> WhatIf:
    source = InDirectory(data)
    reader = source.open()
    until = At(offset=reader.queues[0].durable_offset if end is None else end)
    candidate = candidate_for("orders", {"max-length": 3}, None)
    deadline = deadline or Deadline(1_000.0)
    return what_if(reader, None, "/", "orders", None, candidate, At(offset=0), until, 5, deadline)


def same(one: WhatIf, other: WhatIf) -> bool:
    return (one.before, one.after, one.changed, one.first, one.assumed) == (
        other.before,
        other.after,
        other.changed,
        other.first,
        other.assumed,
    )


def test_b34_a_trial_whose_time_is_over_says_up_to_where_it_holds(tmp_path: Path) -> None:
    recorded(tmp_path)
    whole = tried(tmp_path)
    assert (whole.stopped, whole.reached) == (None, whole.end)
    over = tried(tmp_path, deadline=Ends(0))
    assert (over.stopped, over.reached, over.first) == (TIME, 0, [])
    looks, ends = 1, set()
    while (cut := tried(tmp_path, deadline=Ends(looks))).stopped is not None:
        assert cut.stopped == TIME
        if cut.before.greatest_depth:  # else the queue is not declared yet
            assert same(cut, tried(tmp_path, cut.reached))
        ends.add(cut.reached)
        looks += 1
    assert len(ends) > 3
    assert same(cut, whole)


def test_b34_a_trial_with_too_many_messages_apart_ends_before_the_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path)
    for most in (0, 1, 10, 36):
        monkeypatch.setattr(module, "MOST_APART", most)
        cut = tried(tmp_path)
        assert cut.stopped == MEMORY
        assert 0 < cut.reached < cut.end
        monkeypatch.setattr(module, "MOST_APART", 1_000)
        until = tried(tmp_path, cut.reached)
        assert (cut.before, cut.after, cut.changed) == (until.before, until.after, until.changed)
