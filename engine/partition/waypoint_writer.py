"""Writes waypoints of the partitions while the broker runs, so that a moment that is not long ago costs no long fold.

    every `waypoint_events` -> packed in the loop (a few ms) -> durable? -> a thread: checksum, compress, write, rename

    DIR/snapshots/queues-0/00000000000000010000.waypoint      a snapshot's format, without a digest

Snapshots are a million events apart: they are history's index, and are kept. Waypoints lie between them, for people who
look at one moment after the other. A waypoint saves time and decides nothing, as a snapshot; so it is not synced, and a
fold passes over one that is damaged.

Rules of this file
- A waypoint is written only when all of its events are durable.
- Waypoints take a hundredth of the broker's CPU at most: after a large state the next one comes later.
- If a state is not packed within PACK_SECONDS, or the disk refuses it, it is given up, and the next one is tried RARELY
  events later.
- A partition keeps its newest MOST_FILES waypoints, and at most MOST_BYTES of them.
- One waypoint is under way at a time.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final

from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.engine.partition.snapshot_writer import in_thread
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.snapshots import Snapshots, state_of, waypoint_metadata

RARELY: Final = 1_000_000
SECONDS_AN_EVENT: Final = 0.000_000_2  # of CPU, for waypoints; an event costs the broker a hundred times as much
PACK_SECONDS: Final = 0.01  # of the loop's CPU
MOST_FILES: Final = 1_000  # of a partition: ten million events
MOST_BYTES: Final = 268_435_456  # of a partition's files

logger = logging.getLogger(__name__)

Pieces = list[dict[str, Any]]


class WaypointWriter:
    """The waypoints of one broker. `every`: events between two of a partition, at least."""

    def __init__(self, snapshots: Snapshots, partitions: Sequence[PartitionReading], every: int) -> None:
        self._snapshots = snapshots
        self._partitions = partitions
        self._every = every
        self._due = {each.name: each.machine.next_offset + every for each in partitions}
        self._kept = {each.name: deque(snapshots.waypoints(each.name)) for each in partitions}  # (offset, bytes)
        self._waiting = False  # until the log is durable
        self._in_thread: Future[None] | None = None
        self._stopped = False

    def take_if_due(self, when_durable: Callable[[Callable[[], None]], object]) -> None:
        """Begin a waypoint if one is due and none is under way.

        `when_durable` calls back in the loop when all events so far are durable."""
        for partition in self._partitions:
            if partition.machine.next_offset >= self._due[partition.name]:
                if not self._under_way and not self._stopped:
                    self._begin(partition.machine, when_durable)
                return

    @property
    def _under_way(self) -> bool:
        return self._waiting or (self._in_thread is not None and not self._in_thread.done())

    def _begin(self, machine: Machine, when_durable: Callable[[Callable[[], None]], object]) -> None:
        offset, began = machine.next_offset, time.thread_time()
        pieces = _packed(machine)
        if pieces is None:
            self._due[machine.partition] = offset + RARELY
            return
        self._due[machine.partition] = offset + self._every
        metadata = waypoint_metadata(machine)
        spent = time.thread_time() - began
        self._waiting = True

        def durable() -> None:
            self._waiting = False
            if not self._stopped:
                self._in_thread = in_thread(
                    "waypoint", lambda: self._write(machine.partition, offset, metadata, pieces, spent)
                )

        when_durable(durable)

    def _write(self, partition: str, offset: int, metadata: dict[str, str], pieces: Pieces, spent: float) -> None:
        """Write a waypoint, and remove the oldest ones. In the thread, one at a time. `spent`: CPU seconds so far."""
        kept, began = self._kept[partition], time.thread_time()
        try:
            kept.append((offset, self._snapshots.leave_waypoint(partition, offset, metadata, pieces)))
            total = sum(size for _, size in kept)
            while len(kept) > MOST_FILES or (total > MOST_BYTES and len(kept) > 1):
                gone, size = kept.popleft()
                total -= size
                self._snapshots.remove_waypoint(partition, gone)
            spent += time.thread_time() - began
            self._due[partition] = offset + max(self._every, int(spent / SECONDS_AN_EVENT))
        except OSError as error:
            logger.warning("%s: no waypoint could be written: %s", partition, error)
            self._due[partition] = offset + RARELY
        except Exception:  # a defect here must cost no more than the waypoint
            logger.exception("%s: no waypoint was written", partition)
            self._due[partition] = offset + RARELY

    def stop(self) -> None:
        """Begin no other, and wait for the one that is being written."""
        self._stopped = True
        if self._in_thread is not None:
            self._in_thread.result()


def _packed(machine: Machine) -> Pieces | None:
    """The pieces of the state; None if it takes too long to pack them."""
    began = time.thread_time()
    made: Pieces = []
    pieces: Iterator[dict[str, Any]] = state_of(machine)
    for piece in pieces:
        made.append(piece)
        if time.thread_time() - began > PACK_SECONDS:
            return None
    return made
