"""The shared log in memory keeps what a real one keeps, whatever its faults are (engine/log/shared_contract.py)."""

from collections.abc import Iterator

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.shared_contract import Arrived
from rewindmq.engine.log.simulated.shared import SESSION_SECONDS, MemorySharedLog, SharedFaults, SharedHistory
from tests.simulation.nodes_loop import NodesLoop

FAULTS = SharedFaults(7, append_seconds=0.3, arrival_seconds=1.0, duty_seconds=2.0, gap_rate=0.3)


@pytest.fixture
def loop() -> Iterator[NodesLoop]:
    loop = NodesLoop()
    yield loop
    loop.close()


def history_in(loop: NodesLoop, faults: SharedFaults = FAULTS) -> SharedHistory:
    return SharedHistory(2, lambda: round(loop.time() * 1000), loop.call_later, faults)


class Heard:
    def __init__(self) -> None:
        self.seen: list[Arrived] = []
        self.troubles: list[str | None] = []
        self.delivered_at: list[int] = []

    def delivered(self, name: str, offsets: list[int]) -> None:
        self.delivered_at += offsets

    def arrived(self, batches: list[Arrived]) -> None:
        self.seen += batches

    def trouble(self, why: str | None) -> None:
        self.troubles.append(why)

    def fail(self, error: Exception) -> None:
        raise error

    def duties_changed(self, names: frozenset[str]) -> None:
        """Nothing is done for them here."""


def heard(log: MemorySharedLog) -> Heard:
    """Everything from the beginning; grows."""
    listener = Heard()
    log.follow({partition.name: 0 for partition in log.partitions}, listener)
    return listener


def follow(log: MemorySharedLog) -> list[Arrived]:
    return heard(log).seen


def values(seen: list[Arrived], partition: str) -> list[bytes]:
    return [value for batch in seen if batch.partition == partition for value in batch.values]


def test_all_nodes_read_the_same_and_each_nodes_records_in_its_order(loop: NodesLoop) -> None:
    history = history_in(loop)
    logs = {name: history.open(name) for name in "ab"}
    seen = {name: follow(log) for name, log in logs.items()}
    for number in range(100):
        for name, log in logs.items():
            log.queues[number % 2].append(b"", f"{name}{number:03}".encode())
        loop.run(0.01)
    loop.run(20)
    for partition in ("queues-0", "queues-1"):
        both = values(seen["a"], partition)
        assert both == values(seen["b"], partition)
        assert len(both) == 100
        for name in "ab":
            own = [value for value in both if value.startswith(name.encode())]
            assert own == sorted(own)
    assert len(seen["a"]) > 5
    offsets = [offset for batch in seen["a"] if batch.partition == "queues-0" for offset in batch.offsets]
    assert offsets == sorted(offsets)
    assert offsets[-1] > 100  # it has gaps
    blocks = list(logs["a"].queues[0].read())
    assert [value for block in blocks for value in block.records] == values(seen["a"], "queues-0")
    stamps = [stamp for block in blocks for stamp in block.timestamps_ms or ()]
    assert stamps == sorted(stamps)
    later = next(offset for offset, stamp in zip(offsets, stamps, strict=True) if stamp > stamps[10])
    assert logs["a"].queues[0].offset_at(stamps[10]) == later


def test_who_is_cut_off_loses_nothing_and_gets_nothing(loop: NodesLoop) -> None:
    history = history_in(loop)
    cut, other = history.open("a"), history.open("b")
    listener = heard(cut)
    seen, troubles, seen_by_other = listener.seen, listener.troubles, follow(other)
    cut.cut(True)
    cut.queues[0].append(b"", b"late")
    other.queues[0].append(b"", b"soon")
    loop.run(30)
    assert values(seen_by_other, "queues-0") == [b"soon"]
    assert not seen
    assert len(troubles) == 1
    cut.cut(False)
    loop.run(30)
    assert values(seen, "queues-0") == values(seen_by_other, "queues-0") == [b"soon", b"late"]
    assert troubles[1:] == [None]


def test_of_a_node_that_is_killed_a_front_part_lands(loop: NodesLoop) -> None:
    lengths = set()
    for seed in range(80):
        history = history_in(loop, SharedFaults(seed, append_seconds=0.3))
        log = history.open("a")
        sent = [b"%d" % number for number in range(5)]
        for value in sent:
            log.queues[0].append(b"", value)
        log.kill()
        log.queues[0].append(b"", b"of the dead")
        loop.run(5)
        landed = history.queues[0].values
        assert landed == sent[: len(landed)]
        lengths.add(len(landed))
    assert {0, 5} < lengths


def test_closing_lands_everything_or_says_that_it_cannot(loop: NodesLoop) -> None:
    history = history_in(loop)
    log, cut = history.open("a"), history.open("b")
    cut.cut(True)
    for each in (log, cut):
        each.queues[0].append(b"", each.node.encode())
    log.close()
    assert history.queues[0].values == [b"a"]
    with pytest.raises(LogError, match="1 events were appended and are not in the log"):
        cut.close()


def test_duties_go_to_those_who_are_there(loop: NodesLoop) -> None:
    history = history_in(loop)
    logs = {name: history.open(name) for name in "ab"}
    for log in logs.values():
        follow(log)
    loop.run(5)
    assert sorted([*logs["a"].owned, *logs["b"].owned]) == ["queues-0", "queues-1"]
    logs["a"].cut(True)
    loop.run(SESSION_SECONDS + 5)
    assert logs["b"].owned == {"queues-0", "queues-1"}
    history.assign({"queues-0": ["a", "b"], "queues-1": []})
    loop.run(5)
    assert logs["a"].owned == logs["b"].owned == {"queues-0"}
