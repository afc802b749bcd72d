"""Repairs the state store after a write that RocksDB refused.

`mend`: the disk was full, or no file descriptor was left

    RocksDB is opened again -> each partition is at a flushed offset, or at the later base of its log -> the log is
    folded on top, up to the live machine's offset -> the live machine's chunks are written over those of that fold

The log has every event, so nothing of a failed batch is needed. The second fold is discarded, and the live machine
continues unchanged. Its layout of chunks differs from the loaded fold's, so it writes all of them once.

`StateStore.make_anew`: RocksDB found damage in its files, as it does when it compacts them

    an empty RocksDB beside the damaged one -> the live machine and the readable bodies are written to it -> it replaces
    the damaged one

An unreadable body is left out, because the broker can read it from the log on demand. Folding the whole history again
would take too long while clients wait.
"""

from collections.abc import Iterable

from rewindmq.projections.replay import PartitionLog, begin_with_base, catch_up
from rewindmq.projections.store.projector import Projector
from rewindmq.projections.store.store import StateStore


def mend(store: StateStore, partitions: Iterable[tuple[PartitionLog, Projector]]) -> int:
    """Repair the store, and return the number of events folded again.

    The log must be durable up to each machine's offset, and every effect so far must have been observed. Raises
    StoreError, LogError or a plain Exception of RocksDB; the caller may then try again."""
    store.reopen()
    folded = 0
    for log, projector in partitions:
        if store.applied_offset(log.name) < log.start_offset:
            begin_with_base(log, store)
        again = store.fold_of(log.name)
        folded += catch_up(log, again, projector.machine.next_offset)
        if again.failed is not None:
            raise again.failed
        again.write(again.prepare())
        projector.write_whole()
    return folded
