"""Compares what a broker keeps with the fold of an audit, in a Spark task: snapshots, and its RocksDB.

    beside = BesideFold(location, fold_input, product, snapshots, meets)
    fold_range(product, replace(fold_input, groups=beside.groups()));  beside.rows()     # an audit of the whole
    compare_with_snapshot(data, offset_range, external)      # an audit in chunks: RocksDB, from the nearest snapshot

An audit of the whole folds a partition once. It stops at the offset of each snapshot, and at that of RocksDB, and
compares there: state, bodies and quarantined records. Such an offset may lie behind the range of the audit, as a
running broker continues. Then the fold continues to there, without the audit.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rewindmq.engine.keeping.location import InDirectory, Location
from rewindmq.projections.replay import RecordGroup, drive
from rewindmq.projections.store.snapshots import Snapshots, SnapshotSet
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.projections.verify import NOT_CHECKED, Verification, compare_all, stored_offset, verify_partition
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.fold import FoldInput, from_snapshot, groups_up_to
from rewindmq.spark_replay.location.log import partition_of
from rewindmq.spark_replay.location.ranges import OffsetRange
from rewindmq.spark_replay.snapshots.verify import SNAPSHOTS, StateSummary, compare

STORE = "store"
_Row = tuple[str, bool, str, int | None, str | None, int | None, str]


class BesideFold:
    """The comparisons beside the audit of one partition.

    `meets`: the offsets of the snapshots that the fold has to arrive at, ascending."""

    def __init__(
        self,
        location: Location,
        fold_input: FoldInput,
        product: AuditProduct,
        snapshots: SnapshotSet | None,
        meets: Sequence[int],
    ) -> None:
        self.input = fold_input
        self.machine = fold_input.machine
        self.quarantine = product.quarantine
        self.log = partition_of(location, fold_input.offset_range.partition)
        self.begun = self.at = self.held_at = self.machine.next_offset
        self.snapshots = snapshots
        self.meets = meets
        self.differing: list[_Row] = []  # snapshots at which the fold does not arrive
        self.stops: list[tuple[int, Callable[[], None]]] = [(offset, partial(self._meet, offset)) for offset in meets]
        self.of_store: list[Finding] = []
        self.store = _opened(location, self.log.name, self.of_store) if isinstance(location, InDirectory) else None
        if self.store is not None:
            try:
                offset = stored_offset(self.log, self.store)
                self.stops.append((offset, partial(self._compare_store, self.store, offset)))
            except StoreError as error:
                self.of_store.append(_finding(self.log.name, False, str(error)))
        self.stops.sort(key=lambda stop: stop[0])

    def groups(self) -> Iterator[RecordGroup]:
        """Yield the records of the range. A group is asked for when those before it are folded."""
        end = self.input.offset_range.end
        while self.stops and self.stops[0][0] <= end:
            offset, look = self.stops.pop(0)
            yield from groups_up_to(self.log, self.at, offset)
            self.at = max(self.at, offset)
            look()
        yield from groups_up_to(self.log, self.at, end)
        self.at = max(self.at, end)

    def rows(self) -> list[_Row]:
        """Return the rows of AUDIT, when the range is folded. The fold continues to the stops behind the range."""
        for offset, look in self.stops:
            drive(
                self.machine,
                groups_up_to(self.log, self.at, offset),
                self.input.decoder,
                after=self.quarantine.see,
                undecodable=self.quarantine.note_undecodable,
            )
            self.at = offset
            look()
        if self.store is not None:
            self.store.close()
        rows = self.differing
        if self.meets and not rows:
            count = len(self.meets)
            detail = f"{count} snapshots, {self.meets[-1] - self.begun} events in {count} chunks"
            rows = [(SNAPSHOTS, True, self.log.name, None, None, None, detail)]
        return [*rows, *(finding.row() for finding in self.of_store)]

    def _meet(self, offset: int) -> None:
        assert self.snapshots is not None, "an offset to meet is that of a snapshot"
        summary = StateSummary.of(self.machine)
        differing = list(compare(summary, self.snapshots, self.log.name, offset, self.held_at))
        if not differing:
            self.held_at = offset
        self.differing += differing

    def _compare_store(self, store: StateStore, offset: int) -> None:
        name = self.log.name
        report = Verification(name, offset, store.holds(name), quarantined=self.quarantine)
        try:
            compare_all(self.machine, self.log, store, report, self.begun == 0)
            self.of_store += _in_findings(report)
        except StoreError as error:
            self.of_store.append(_finding(name, False, str(error)))


def compare_with_snapshot(location: InDirectory, offset_range: OffsetRange, external: Snapshots) -> list[Finding]:
    """Compare RocksDB, read-only, with a fold that begins at a snapshot of `external`."""
    name, found = offset_range.partition, list[Finding]()
    store = _opened(location, name, found)
    if store is None:
        return found
    try:
        log = partition_of(location, name)
        begun = from_snapshot(external, log, stored_offset(log, store))
        return _in_findings(verify_partition(log, store, begun, event_by_event=True))
    except StoreError as error:
        return [_finding(name, False, str(error))]
    finally:
        store.close()


def _opened(location: InDirectory, partition: str, found: list[Finding]) -> StateStore | None:
    """Return the RocksDB of a data directory. Where it cannot be opened, None, and `found` says why."""
    path = location.data / "state"
    if not path.exists():
        no_state = f"{NOT_CHECKED}there is no state directory; a broker that starts rebuilds it"
        found.append(_finding(partition, True, no_state))
        return None
    try:
        return StateStore.open(path, read_only=True)
    except StoreError as error:
        found.append(_finding(partition, False, str(error)))
        return None


def _finding(partition: str, ok: bool, detail: str) -> Finding:
    return Finding(STORE, ok, partition, None, None, None, detail)


def _in_findings(report: Verification) -> list[Finding]:
    name, offset = report.partition, report.offset
    if report.equal:
        compared = f"{report.queues} queues, {report.messages} bodies, {report.result} at offset {offset}"
        return [_finding(name, True, compared if report.stored else report.result)]
    found = [
        Finding(STORE, False, name, offset, each.queue or None, each.message_id, f"{each.key} {each.what}")
        for each in report.differences
    ]
    if report.difference_count > len(found):
        more = f"and {report.difference_count - len(found)} more differences"
        found.append(Finding(STORE, False, name, offset, None, None, more))
    return found
