"""An auditor's own directory of snapshots: it names the log that they belong to, and proves later that it is unchanged.

    OWN/cut.json         {"format": 1, "every": 1000000, "begins": {"queues-0": SHA-256 of its first record, ...}}; the
                         metadata log is never cut, so its first record always tells two histories apart
    OWN/queues-0/...     snapshots, in the format of projections/store/snapshots.py
    OWN/queues-0/...     ledgers that audits kept beside them, in the format of audit/ledger_files.py
    OWN/chain.json       segments of the log that audits have proven, in the format of audit/log_bytes.py
    OWN/SHA256SUMS       a line for each of the files above: `sha256sum --check SHA256SUMS` compares them

The SHA-256 of SHA256SUMS stands for all of it: a copy kept elsewhere shows that nobody changed the directory since. A
directory without `cut.json` is taken as it is: as that of a broker or a node.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewindmq.engine.keeping.location import InDirectory, Location
from rewindmq.engine.log.contract import BelowStart
from rewindmq.engine.log.embedded.root import require_own
from rewindmq.projections import system_calls
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.store.snapshots import Snapshots, SnapshotSet
from rewindmq.schemas.formats import formatted, values_in
from rewindmq.spark_replay.location.ranges import BadRequest

CUT, PROVEN, SUMS = "cut.json", "chain.json", "SHA256SUMS"
KEPT = (".snapshot", ".ledger", ".letters")


def external_snapshots(location: Location, directory: Path | None) -> Snapshots | None:
    """Return the snapshots in `directory`; None for no directory.

    Raises BadRequest when it does not exist, has no snapshots, or has those of another log."""
    if directory is None:
        return None
    if not directory.is_dir():
        raise BadRequest(f"{directory}: no such directory")
    about = read_about(directory)
    external = Snapshots(directory.resolve())
    if about is not None:
        require_same_log(location, directory, about)
    elif not external.partitions():
        raise BadRequest(f"{directory}: there are no snapshots in it")
    elif isinstance(location, InDirectory):
        require_own(directory, location.data)
    return external


def offsets_of(snapshots: SnapshotSet | None) -> dict[str, list[int]]:
    """Return the offsets of the snapshots, by partition.

    A caller that compares them with the end of the log calls this first: a broker may take snapshots meanwhile."""
    return {} if snapshots is None else {name: snapshots.offsets(name) for name in snapshots.partitions()}


def beyond_the_end(taken: Mapping[str, Sequence[int]], ends: Mapping[str, int]) -> Iterator[tuple[str, int, str]]:
    """Yield partition, offset and reason of each snapshot beyond the end of the log.

    Snapshots are taken of durable events, so the log was longer."""
    for name, offsets in taken.items():
        end = ends.get(name)
        where = "there is no such partition" if end is None else f"the log ends at {end}"
        yield from ((name, at, f"a snapshot is of offset {at}, but {where}") for at in offsets if at > (end or 0))


def read_about(directory: Path) -> dict[str, Any] | None:
    """Return the content of `cut.json`; None when there is no such file.

    Raises BadRequest when `cut` did not write it."""
    try:
        found = values_in((directory / CUT).read_text(), directory / CUT, BadRequest)
        return {"every": int(found["every"]), "begins": dict(found["begins"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise BadRequest(f"{directory / CUT}: not as `cut` writes it") from None


def require_same_log(location: Location, directory: Path, about: dict[str, Any]) -> None:
    """Raise BadRequest when the directory's snapshots are of another log than the one at `location`."""
    other = begins_otherwise(about["begins"], begins_of(location))
    if other is not None:
        raise BadRequest(f"{directory} has snapshots of another log: its {other} does not begin as the one there")


def begins_otherwise(noted: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Return the first partition whose beginning is not as it was noted; None: all are."""
    return next((name for name, begins in found.items() if noted.get(name, begins) != begins), None)


def begins_of(location: Location) -> dict[str, str]:
    """SHA-256 of the first record of each partition that has one, and of the kind of its log.

    Two logs hardly have the same one, except for a copy, and topics give records times of their own."""
    found = {}
    log = location.open()
    for partition in (log.metadata, *log.queues):
        record = _first_record(partition)
        if record is not None:
            kind = b"shared" if partition.shared else b"sole"
            found[partition.name] = hashlib.sha256(kind + record).hexdigest()
    return found


def _first_record(partition: PartitionLog) -> bytes | None:
    if partition.start_offset > 0:  # it was trimmed: nothing has its first record
        return None
    try:
        for block in partition.read(0, 1):
            return block.records[0] if block.first_offset == 0 else None
    except BelowStart:  # somebody removed it: those who check the log say so
        return None
    return None


def write_about(directory: Path, about: dict[str, Any]) -> None:
    """Write `cut.json`."""
    write_whole(directory / CUT, formatted(about) + "\n")


def write_sums(directory: Path, written: set[Path]) -> str:
    """Bring SHA256SUMS up to date; `written` are the new files. Returns its own SHA-256."""
    known: dict[str, str] = {}
    if (directory / SUMS).exists():
        for line in (directory / SUMS).read_text().splitlines():
            digest, _, name = line.partition("  ")
            known[name] = digest
    lines = []
    kept = [path for kind in KEPT for path in directory.glob(f"*/*{kind}")]
    for path in sorted([directory / CUT, *directory.glob(PROVEN), *kept]):
        name = str(path.relative_to(directory))
        if name not in known or path in written or path.name == CUT:
            with path.open("rb") as file:
                known[name] = hashlib.file_digest(file, "sha256").hexdigest()
        lines.append(f"{known[name]}  {name}\n")
    text = "".join(lines)
    write_whole(directory / SUMS, text)
    return hashlib.sha256(text.encode()).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        system_calls.sync(file.fileno())
    new.replace(path)
