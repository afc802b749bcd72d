"""Archived states of a partition: bases and snapshots, the newest first.

    begin_with_archive(log, store, data_dir)       for a node whose state is below Kafka's start
    state_at_offset(log, offset, data_dir)         for a new base (topic_space.py)

A base has the records of all queued messages. For a snapshot these are read from Kafka or from the archive. A damaged
state is skipped. Without any, the fold begins at offset 0, in the archive, or with the base at the floor.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.manifest import BaseEntry, SnapshotEntry
from rewindmq.engine.keeping.archive.reader import ArchivedPartition
from rewindmq.engine.keeping.archive.snapshots import ArchivedSnapshots
from rewindmq.engine.keeping.archive.unpack import CorruptObject
from rewindmq.engine.keeping.single_records import queued_records
from rewindmq.engine.keeping.topic_tiers import TieredTopic
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import beginning, fold
from rewindmq.projections.store.bases import Base, BaseError, Bases, queued_offsets
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.schemas.service_records import SharedDecoder

if TYPE_CHECKING:
    from rewindmq.engine.keeping.location import HistoryPartition

State = BaseEntry | SnapshotEntry

BEGIN = "begin"  # a directory for one base, while a node with an open state store begins with it

logger = logging.getLogger(__name__)


def begin_with_archive(log: TieredTopic, store: StateStore, data_dir: Path) -> None:
    """Replace the stored state by the newest archived one, if Kafka no longer has the records after it.

    The directory then notes the archive, because its readers also need it. Records quarantined below it are not listed.
    Raises LogError if the archive lacks some of what Kafka lacks, StoreError, NewerHistory, NoAnswer, OSError."""
    applied, start = store.applied_offset(log.name), log.topic.start_offset
    if start == 0 or start <= applied <= log.next_offset:
        return
    archived = log.below(start)
    note_archive(data_dir, log.archive.open().objects.url)
    for state in _newest(archived, log.next_offset):
        if state.offset <= applied <= log.next_offset:
            break  # the stored one is newer
        try:
            with _as_base(log, archived, state, data_dir / BEGIN) as base:
                store.begin(base, SharedDecoder())
        except (BaseError, CorruptObject, SnapshotError, StoreError) as error:
            logger.warning("%s: %s: the node begins with an older state", log.name, error)
            store.discard(log.name)
            applied = 0
        else:
            logger.info(
                "%s begins at offset %d in Kafka: the node begins with the archived state at %d",
                log.name,
                start,
                base.offset,
            )
            return
    logger.info("%s begins at offset %d in Kafka: the node reads earlier records from the archive", log.name, start)


def state_at_offset(log: TieredTopic, offset: int, data_dir: Path) -> Machine:
    """Return the state at an offset, folded from the node's nearest snapshot, or from an archived state.

    Raises as `begin_with_archive`."""
    local, archived = Snapshots(data_dir / "snapshots"), log.below(log.topic.start_offset)
    loads: list[tuple[int, Callable[[], Machine]]] = [
        (each, partial(local.load, log.name, each)) for each in reversed(local.offsets(log.name)) if each <= offset
    ]
    for state in _newest(archived, offset):
        loads.append((state.offset, partial(_machine, log, archived, state)))
    machine: Machine | None = None
    for _, load in sorted(loads, key=itemgetter(0), reverse=True):
        try:
            machine = load()
            break
        except (BaseError, CorruptObject, SnapshotError) as error:
            logger.warning("%s: %s: an older state is used", log.name, error)
    machine = machine or beginning(log)
    fold(machine, log, offset)
    return machine


def _newest(archived: ArchivedPartition, most: int) -> list[State]:
    """Return the archived states up to an offset, the newest first; at one offset the base first."""
    states: list[State] = [*archived.snapshots, *archived.bases]
    states.sort(key=lambda each: (each.offset, isinstance(each, BaseEntry)), reverse=True)
    return [each for each in states if each.offset <= most]


def _machine(log: TieredTopic, archived: ArchivedPartition, state: State) -> Machine:
    """Return the machine of an archived state.

    Raises BaseError, CorruptObject, SnapshotError, NoAnswer."""
    if isinstance(state, BaseEntry):
        return archived.base_of(state).machine()
    return ArchivedSnapshots(log.archive.open().objects.url).load(log.name, state.offset)


@contextmanager
def _as_base(log: TieredTopic, archived: ArchivedPartition, state: State, directory: Path) -> Iterator[Base]:
    """Yield an archived state as a base, made from a snapshot in this directory, which is removed at the end."""
    if isinstance(state, BaseEntry):
        yield archived.base_of(state)
        return
    with written_base(log, _machine(log, archived, state), directory) as base:
        yield base


@contextmanager
def written_base(log: "HistoryPartition", machine: Machine, directory: Path) -> Iterator[Base]:
    """Yield a machine's state with its messages as a base in this directory, which is removed at the end.

    Raises BaseError, LogError, OSError."""
    bases, offset = Bases(directory), machine.next_offset
    try:
        records = queued_records(log, queued_offsets(machine))
        bases.write(machine, b"", records)  # no log begins there, so it needs no chain
        del machine, records  # the base is loaded as a new one
        yield bases.open(log.name, offset)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
