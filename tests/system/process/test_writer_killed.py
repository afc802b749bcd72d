"""A process that writes, folds and projects is killed at any moment, and recovers to what its log says."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold, recover
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Published
from tests.support.refolds import assert_same_quarantine
from tests.support.running import ROOT
from tests.support.traffic import live_messages, record

WRITER = [sys.executable, "-m", "tests.support.writer"]


@pytest.mark.parametrize("seed", range(3))
def test_a_writer_killed_at_any_moment_recovers_to_what_its_log_says(tmp_path: Path, seed: int) -> None:
    """kill -9 while events are logged, folded and projected; again and again on the same directory."""
    data = tmp_path
    compared = 0
    for attempt in range(3):
        process = subprocess.Popen([*WRITER, str(data), str(seed * 10 + attempt)], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        time.sleep(0.15 + 0.13 * attempt + 0.05 * seed)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()

        log = PartitionReader(data / "log" / "queues-0")
        refolded = Machine("queues-0")
        quarantined = fold(refolded, log)
        store = StateStore.open(data / "state")
        stored_offset = store.applied_offset("queues-0")
        assert stored_offset <= log.next_offset
        recovery = recover(log, store)
        assert_same_quarantine(recovery.quarantined, quarantined)
        assert recovery.projector.quarantine_count == quarantined.count
        recovery.machine.validate()
        assert recovery.machine.digest() == refolded.digest()
        bodies = {}
        decoder = Decoder()
        for block in log.read():
            for index, logged in enumerate(block.records):
                event = decoder.decode(logged)[2]
                if isinstance(event, Published):
                    bodies[block.first_offset + index] = event
        live = live_messages(refolded)
        compared += len(live)
        for queue_id, message_id in live:
            assert record(recovery.projector.message(queue_id, message_id)) == record(bodies[message_id])
        store.close()
    assert compared > 0
