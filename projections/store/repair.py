"""Repairs the state store after a write that RocksDB refused.

`mend`: the disk was full, or no file descriptor was left

    RocksDB opened again -> each partition is at an offset that was flushed, or later at the base of its log -> the log
    is folded on top of it, up to the live machine's offset -> the live machine's chunks are written over those of that
    fold

The log has every event, so nothing of a failed batch is needed. The second fold is thrown away: the live machine goes
on as it is. The live machine lays out its chunks in another way than the fold that was loaded, and so it writes all of
them once.

`StateStore.make_anew`: RocksDB found damage in its files, as it does when it compacts them

    an empty RocksDB beside the damaged one -> the live machine, and the bodies that can be read are written to it -> it
    takes the place of the damaged one

A body that cannot be read is left out: the broker reads it from the log when it is needed. To fold the whole history
again would take too long while clients wait.
"""

from collections.abc import Iterable

from rewindmq.projections.replay import PartitionLog, begin_with_base, catch_up
from rewindmq.projections.store.projector import Projector
from rewindmq.projections.store.store import StateStore


def mend(store: StateStore, partitions: Iterable[tuple[PartitionLog, Projector]]) -> int:
    """Repair the store. Returns how many events were folded again.

    The log must be durable up to each machine's offset, and every effect so far must have been observed. Raises
    StoreError, LogError or a plain Exception of RocksDB; the caller may try again after it."""
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
