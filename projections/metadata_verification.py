"""Verifies that the snapshots of the topology follow from the metadata log.

    report = verify_metadata(log.metadata, Snapshots(data_dir / "snapshots")): report.equal, report.differences

It folds the log once from its beginning without trusting any snapshot, and compares the whole stored state (its bytes)
at the offset of each snapshot. Memory: one fold, and one snapshot.
"""

from dataclasses import dataclass, field

from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.store.metadata_snapshots import OtherVersion, load, require_of
from rewindmq.projections.store.metadata_snapshots import about as about_snapshot
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots
from rewindmq.projections.topology.about_history import Fork
from rewindmq.projections.topology.fold_image import digest_of, image_of
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from rewindmq.projections.verify import NOT_CHECKED


@dataclass(slots=True)
class MetadataVerification:
    """The result for the snapshots of the topology.

    `compared`: the number compared. `other_versions`: the number folded by other rules, which are not used and do not
    count as differences. `differences`: offset and fault of a snapshot. `forks`: the branches of the history, by the
    fold from the beginning."""

    partition: str
    end: int
    compared: int = 0
    other_versions: int = 0
    differences: list[tuple[int, str]] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return True if no difference was found."""
        return not self.differences

    @property
    def result(self) -> str:
        """Return the result in words."""
        if self.differences:
            return f"{len(self.differences)} of {self.compared} differ"
        if not self.compared:
            return f"{NOT_CHECKED}there is no snapshot of this version"
        return f"{self.compared} equal"


def verify_metadata(log: PartitionLog, snapshots: Snapshots | None) -> MetadataVerification:
    """Compare each snapshot of the topology with the fold from the beginning.

    Raises CorruptLog, LogError."""
    offsets = [] if snapshots is None else snapshots.offsets(log.name)  # first: a broker may take more later
    report, fold = MetadataVerification(log.name, log.next_offset), MetadataFold()
    for offset in offsets:
        assert snapshots is not None, "there are offsets"
        path = snapshots.path(log.name, offset)
        try:
            require_of(log, report.end, path, about_snapshot(path))
            said = digest_of(image_of(load(path)).pieces())
        except OtherVersion:
            report.other_versions += 1
            continue
        except SnapshotError as error:
            report.compared += 1
            report.differences.append((offset, f"cannot be used: {error}"))
            continue
        report.compared += 1
        fold_on(fold, log, offset)
        found = digest_of(image_of(fold).pieces())
        if said != found:
            what = f"holds a state of digest {said}; the fold from the beginning of the log has {found} there"
            report.differences.append((offset, what))
    fold_on(fold, log, report.end)
    report.forks = fold.topology.history.forks
    return report
