"""A checkpoint of a state store that is written to: whole batches, also what is in memory only (there is no WAL)."""

import threading
from pathlib import Path

import pytest

from rewindmq.projections.replay import recover
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.projections.verify import verify
from tests.support.traffic import ListLog, Traffic


def test_what_was_written_is_in_it_though_nothing_was_flushed(tmp_path: Path) -> None:
    traffic = Traffic(3)
    traffic.run(500)
    store = StateStore.open(tmp_path / "state")
    recovery = recover(traffic.log, store)
    recovery.projector.write(recovery.projector.prepare())
    store.checkpoint(tmp_path / "copy")
    store.close()
    copied = StateStore.open(tmp_path / "copy")
    again = recover(traffic.log, copied)
    assert (again.stored_offset, again.replayed) == (traffic.log.next_offset, 0)
    assert again.machine.digest() == traffic.machine.digest()
    copied.close()


def test_checkpoints_beside_writes_are_whole_batches(tmp_path: Path) -> None:
    """And what is written later, or deleted, does not change them."""
    log = ListLog()
    store = StateStore.open(tmp_path / "state")
    recovery = recover(log, store)
    traffic = Traffic(5, recovery.machine, recovery.projector, log=log)
    written = threading.Event()
    ended = threading.Event()
    copies: list[Path] = []

    def copy() -> None:
        while not ended.is_set():
            written.wait()
            copies.append(tmp_path / f"copy-{len(copies)}")
            store.checkpoint(copies[-1])
            written.clear()

    copying = threading.Thread(target=copy)
    copying.start()
    boundaries = set()
    while len(copies) < 5:
        traffic.run(50)
        batch = recovery.projector.prepare()
        boundaries.add(batch.offset)
        recovery.projector.write(batch)
        written.set()
    ended.set()
    written.set()
    copying.join()
    store.close()
    for path in copies:
        (report,) = verify([traffic.log], path)
        assert report.equal, report.differences
        assert report.offset in boundaries


def test_a_store_that_is_closed_is_not_copied(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path / "state")
    store.close()
    with pytest.raises(StoreError, match="cannot be copied"):
        store.checkpoint(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
