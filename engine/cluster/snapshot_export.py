"""Copies the newest snapshot of an owned partition into the log's topic of states, for a node without one.

    CheckpointAsked -> snapshot, Checkpointed (the claim) ... the claim is read back -> a thread: file -> topic

snapshot_import.py is the receiving side.

Rules of this file
- A copy names the offset of its claim, so a reader finds the digest in the history itself.
- One copy is in progress at a time. The newest snapshot of each partition waits in the meantime.
- Copies cost at most `BYTES_AN_EVENT` bytes an event, so after a large copy the next one is later.
- A failed copy costs nothing but the copy, because the next checkpoint tries again.
"""

import logging
import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.shared_contract import StateTopic, WritingStopped
from rewindmq.engine.partition.snapshot_writer import in_thread
from rewindmq.projections.store.snapshots import Snapshots

BYTES_AN_EVENT: Final = 50  # a twentieth of a small event with its message
STOP_SECONDS: Final = 2.0

logger = logging.getLogger(__name__)


class SnapshotExports:
    """The copies written by one node. `states` None: the log keeps no copies."""

    def __init__(self, states: StateTopic | None, snapshots: Snapshots) -> None:
        self._states = states
        self._snapshots = snapshots
        self._due: dict[str, int] = {}  # by partition: a snapshot below this offset is not copied
        self._waiting: dict[str, tuple[int, int, int]] = {}  # by partition: its number, the offset, that of the claim
        self._lock = threading.Lock()  # of `_waiting` and `_working`
        self._working = False
        self._in_thread: Future[None] | None = None
        self._stopped = False

    def claimed(self, number: int, partition: str, offset: int, claim: int) -> None:
        """Copy the snapshot at `offset`, whose digest this node claims at offset `claim`, if a copy is due.

        `number`: the partition's number in the topic."""
        if self._states is None or self._stopped:
            return
        with self._lock:
            self._waiting[partition] = number, offset, claim
            if not self._working:
                self._working = True
                self._in_thread = in_thread("state-copy", partial(self._work, self._states))

    def _work(self, states: StateTopic) -> None:
        while True:
            with self._lock:
                if self._stopped or not self._waiting:
                    self._working = False
                    return
                partition = next(iter(self._waiting))
                number, offset, claim = self._waiting.pop(partition)
            if offset >= self._due.get(partition, 0):
                self._copy(states, number, partition, offset, claim)

    def _copy(self, states: StateTopic, number: int, partition: str, offset: int, claim: int) -> None:
        try:
            path = self._snapshots.path(partition, offset)
            with path.open("rb") as file:
                self._due[partition] = offset + os.fstat(file.fileno()).st_size // BYTES_AN_EVENT
                states.write(number, offset, claim, file, lambda: self._stopped)
            logger.info("%s: the state at offset %d is in the topic of states", partition, offset)
        except WritingStopped:
            logger.info("%s: the node stops: its state is not copied", partition)
        except (LogError, OSError) as error:
            logger.warning("%s: the state at offset %d could not be copied: %s", partition, offset, error)
        except Exception:  # a defect here must cost no more than the copy
            logger.exception("%s: the state at offset %d was not copied", partition, offset)

    def stop(self) -> None:
        """Begin no other copy, and wait until the current one has noticed, if Kafka answers."""
        self._stopped = True
        with suppress(TimeoutError):
            self.wait(STOP_SECONDS)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the current and the waiting copies. Raises TimeoutError."""
        if self._in_thread is not None:
            self._in_thread.result(seconds)
