"""Machine versions: what holds from where on, and code that does not know one."""

from pathlib import Path

import pytest

from rewindmq.projections.machine.machine import MACHINE_VERSION, Machine, NewerHistory
from rewindmq.projections.replay import fold
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots, load
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import LeaseRenewed, MachineUpgraded, PolicyApplied, Tick
from rewindmq.schemas.values import BROKER
from tests.support.events_for_tests import START_MS, VHOST, Bench, declared
from tests.support.next_version import NEXT, know_next


class InMemory:
    """A partition's log, of these events."""

    name, shared, start_offset = "queues-0", False, 0
    first_offset = 0
    timestamps_ms = None

    def __init__(self, *events: Tick | MachineUpgraded) -> None:
        encoder = Encoder()
        self.records = [encoder.encode(encoder.prefix(START_MS, BROKER), event) for event in events]
        self.next_offset = len(events)

    def read(self, offset: int = 0, end: int | None = None) -> "list[InMemory]":  # a block of itself
        return [self]

    def base(self) -> None:
        """None: it begins at offset 0."""


def test_a_version_that_is_not_known_ends_the_fold() -> None:
    machine = Machine("queues-0")
    log = InMemory(Tick(), MachineUpgraded(MACHINE_VERSION), MachineUpgraded(NEXT), Tick())
    with pytest.raises(NewerHistory) as raised:
        fold(machine, log)  # type: ignore[arg-type]  # it is log and block at once
    assert str(raised.value) == (
        f"queues-0 goes on from offset 2 under machine version {NEXT}, and this version of RewindMQ knows those up to"
        f" {MACHINE_VERSION}: start a newer one"
    )
    assert machine.machine_version == MACHINE_VERSION


@pytest.mark.parametrize("version", [0, -1])
def test_there_is_no_version_below_one(version: int) -> None:
    assert Bench().do(MachineUpgraded(version), 0) == [("quarantine",)]


def test_versions_only_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    know_next(monkeypatch)
    bench = Bench()
    for version in (MACHINE_VERSION, NEXT, MACHINE_VERSION):
        assert bench.do(MachineUpgraded(version), 0) == []
    assert bench.machine.machine_version == NEXT


def test_a_state_of_a_newer_version_is_neither_loaded_nor_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_next(monkeypatch)
    store = StateStore.open(tmp_path / "state")
    bench = Bench()
    bench.machine, projector = store.open_partition("queues-0")
    bench.do(MachineUpgraded(NEXT), 0)
    bench.declare("q")
    projector.write(projector.prepare())
    path = Snapshots(tmp_path / "snapshots").take(bench.machine)
    assert store.load("queues-0").digest() == bench.machine.digest()
    monkeypatch.setattr("rewindmq.projections.machine.serialization.load.MACHINE_VERSION", MACHINE_VERSION)
    with pytest.raises(NewerHistory, match=f"queues-0 goes on from offset 2 under machine version {NEXT}"):
        store.load("queues-0")
    store.close()
    with pytest.raises(SnapshotError, match=f"under machine version {NEXT}"):  # passed over, the log tells
        load(path)


def test_a_queue_remembers_the_version_under_which_it_was_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    know_next(monkeypatch)
    bench = Bench()
    old = bench.declare("old")
    bench.do(MachineUpgraded(NEXT), 0)
    new = bench.declare("new")
    assert (old.version, new.version) == (1, NEXT)
    machine = bench.machine
    loaded = Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    assert {queue.name: queue.version for queue in loaded.queues()} == {"old": 1, "new": NEXT}
    assert loaded.digest() == machine.digest()


# -- policies ----------------------------------------------------------------------------------------------------------


def test_a_policy_behind_the_end_of_its_queue_is_no_error() -> None:
    """Another node may delete the queue while this one applies the policy."""
    assert Bench().do(PolicyApplied(VHOST, "gone", None, None), 0) == []


# -- LeaseRenewed ------------------------------------------------------------------------------------------------------


def test_s053_a_lease_is_renewed() -> None:
    bench = Bench()
    queue = bench.declare("q", expires=1_000)
    bench.now_ms += 900
    assert bench.do(LeaseRenewed(VHOST, "q", queue.queue_id), 0) == []
    bench.now_ms += 900
    assert bench.do(Tick(), 0) == []
    bench.now_ms += 100
    assert bench.do(Tick(), 0) == [("gone", "q", "expired", 0)]


def test_s059_that_of_a_quorum_queue_is_not() -> None:
    bench = Bench()
    queue = bench.declare("q", type="quorum", expires=1_000)
    bench.now_ms += 900
    bench.do(LeaseRenewed(VHOST, "q", queue.queue_id), 0)
    bench.now_ms += 100
    assert bench.do(Tick(), 0) == [("gone", "q", "expired", 0)]


def test_a_renewal_never_brings_a_queue_back_nor_touches_its_successor() -> None:
    bench = Bench()
    first = bench.declare("q", expires=1_000)
    bench.now_ms += 1_000
    assert bench.do(LeaseRenewed(VHOST, "q", first.queue_id), 0) == [("gone", "q", "expired", 0)]
    assert bench.machine.queue(VHOST, "q") is None
    second = bench.declare("q", expires=1_000)
    bench.now_ms += 900
    bench.do(LeaseRenewed(VHOST, "q", first.queue_id), 0)
    assert second.last_used_ms == bench.now_ms - 900


def test_another_sessions_exclusive_queue_is_not_renewed() -> None:
    bench = Bench()
    bench.do(declared(VHOST, "q", exclusive=True, owner=7), 7)
    assert bench.do(LeaseRenewed(VHOST, "q", bench.queue().queue_id), 8) == [("quarantine",)]
