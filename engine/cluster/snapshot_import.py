"""Begins a partition without a state, or with an old one, with the copy that another node left in the log.

A partition that resumes after a long pause does the same (resumption.py).

    topic of states -> DIR/entering/*.part -> machine -> claim in the log? -> base: messages from the log -> state store

Without a trustworthy copy, the node continues from its own state, or begins at the log's beginning.

Rules of this file
- A copy is trusted if its file is whole, if its state has the digest in the file, and if the log has a claim of exactly
  this digest at exactly this offset (`Checkpointed`). So a copy is as good as the history, and decides nothing.
- Messages are read from the log, because a snapshot has none.
- The stored state is replaced last. After a crash on the way the next start repeats everything.
- Memory holds one machine at a time (besides that of a paused partition), and a piece. The file and the base are in
  DIR/entering, which is removed at the end.
"""

import logging
import os
import shutil
from pathlib import Path
from typing import Final, Protocol

from rewindmq.engine.keeping.archive_states import written_base
from rewindmq.engine.keeping.location import HistoryPartition
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.shared_contract import StateCopied, StateTopic
from rewindmq.projections import system_calls
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.bases import BaseError, queued_offsets
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots, load
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Checkpointed
from rewindmq.schemas.service_records import SharedDecoder

ENTRY: Final = "entering"
BASE: Final = "base"
# Folded in a second or two. A copy has to save more, because it is read, checked, written and loaded with its messages.
# The same applies to a partition that resumes after a pause, for which clients may also wait.
LEAST_EVENTS: Final = 200_000
CLAIM_SECONDS: Final = 10.0

logger = logging.getLogger(__name__)


class EnteredHistory(HistoryPartition, Protocol):
    """The records of a partition that a node enters: those of Kafka, or of Kafka and the archive."""

    def record(self, offset: int, seconds: float) -> bytes | None:
        """Return a record, as `SharedPartition.record`."""


def begin_with_copy(log: EnteredHistory, number: int, states: StateTopic | None, store: StateStore, data: Path) -> None:
    """Replace the stored state of a partition by a copy of another node's, if that saves `LEAST_EVENTS` events.

    `number`: the partition's number in the topic. Raises LogError if the log does not report its end."""
    end, applied = log.next_offset, store.applied_offset(log.name)
    if applied > end:
        applied = 0  # of a history that no longer exists
    if states is None or end - applied < LEAST_EVENTS:
        return
    directory = data / ENTRY
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.mkdir()
        copied = states.newest(number, max(applied + LEAST_EVENTS, log.start_offset), directory)
        if copied is None:
            logger.info("%s: no node has left a newer state in the log", log.name)
            return
        machine = believed(log, copied, end)
        if len(queued_offsets(machine)) > copied.offset - applied:
            logger.info("%s: the state at offset %d holds more messages than it saves events", log.name, copied.offset)
            return
        _keep(copied, Snapshots(data / "snapshots"), log.name)
        with written_base(log, machine, directory / BASE) as base:
            del machine
            store.begin(base, SharedDecoder())
    except (BaseError, LogError, OSError, SnapshotError, StoreError) as error:
        logger.warning("%s: the state that another node has left cannot be used: %s", log.name, error)
    else:
        logger.info("%s: the node begins with the state that another node has left at %d", log.name, copied.offset)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def believed(log: EnteredHistory, copied: StateCopied, end: int) -> Machine:
    """Return the machine of a copy, once the log itself confirms it. `end`: of the log.

    Raises SnapshotError if it does not; LogError, NoAnswer."""
    place = f"the copy at offset {copied.offset}"
    if not copied.offset <= copied.claim < end:
        raise SnapshotError(f"{place}: it is claimed at {copied.claim}, and the log ends at {end}")
    machine = load(copied.path)
    if (machine.partition, machine.next_offset) != (log.name, copied.offset):
        raise SnapshotError(f"{place}: it is the state of {machine.partition} at offset {machine.next_offset}")
    record = log.record(copied.claim, CLAIM_SECONDS)
    try:
        claim = None if record is None else SharedDecoder().decode(record)[2]
    except UndecodableRecord:
        claim = None
    if not isinstance(claim, Checkpointed) or (claim.offset, claim.digest) != (copied.offset - 1, machine.digest()):
        raise SnapshotError(f"{place}: the log has no claim of its digest at {copied.claim}")
    return machine


def _keep(copied: StateCopied, snapshots: Snapshots, partition: str) -> None:
    """Make the copy one of this node's snapshots, for reading the past."""
    path = snapshots.path(partition, copied.offset)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(copied.path, path)
    system_calls.sync_directory(path.parent)
