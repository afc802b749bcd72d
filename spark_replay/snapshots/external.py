"""A directory of an auditor's own snapshots: of which log they are, and how it is told later that they are those.

    OWN/cut.json         {"every": 1000000, "begins": {"queues-0": SHA-256 of its first record, ...}}
    OWN/queues-0/...     snapshots, as projections/store/snapshots.py has them
    OWN/queues-0/...     ledgers that audits kept beside them, as audit/ledger_files.py has them
    OWN/chain.json       segments of the log that audits have proven, as audit/log_bytes.py has them
    OWN/SHA256SUMS       a line for each of the files above: `sha256sum --check SHA256SUMS` compares them

The SHA-256 of SHA256SUMS stands for all of it: kept elsewhere, it shows that nobody changed the directory since.
A directory without `cut.json` is taken as it is: that of a broker or a node.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay.location.log import Place, open_log
from rewindmq.spark_replay.location.ranges import BadRequest

CUT, PROVEN, SUMS = "cut.json", "chain.json", "SHA256SUMS"
KEPT = (".snapshot", ".ledger", ".letters")


def own_snapshots(place: Place, directory: Path | None) -> Snapshots | None:
    """The snapshots in `directory`; None for none. BadRequest when it is not there, is none of snapshots, or of another
    log."""
    if directory is None:
        return None
    if not directory.is_dir():
        raise BadRequest(f"{directory}: no such directory")
    about = read_about(directory)
    own = Snapshots(directory.resolve())
    if about is not None:
        require_same_log(place, directory, about)
    elif not own.partitions():
        raise BadRequest(f"{directory}: there are no snapshots in it")
    return own


def offsets_of(snapshots: Snapshots | None) -> dict[str, list[int]]:
    """By partition. Whoever compares them with the end of the log asks this first: a broker may take some meanwhile."""
    return {} if snapshots is None else {name: snapshots.offsets(name) for name in snapshots.partitions()}


def beyond_the_end(taken: Mapping[str, Sequence[int]], ends: Mapping[str, int]) -> Iterator[tuple[str, int, str]]:
    """Partition, offset, and what it says. Snapshots are taken of what is durable, so there was more of the log."""
    for name, offsets in taken.items():
        end = ends.get(name)
        where = "there is no such partition" if end is None else f"the log ends at {end}"
        yield from ((name, at, f"a snapshot is of offset {at}, but {where}") for at in offsets if at > (end or 0))


def read_about(directory: Path) -> dict[str, Any] | None:
    """What `cut.json` says; None when there is none. BadRequest when it is not ours."""
    try:
        found: Any = json.loads((directory / CUT).read_text())
        return {"every": int(found["every"]), "begins": dict(found["begins"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise BadRequest(f"{directory / CUT}: not as `cut` writes it") from None


def require_same_log(place: Place, directory: Path, about: dict[str, Any]) -> None:
    for name, begins in begins_of(place).items():
        if about["begins"].get(name, begins) != begins:
            raise BadRequest(f"{directory} has snapshots of another log: its {name} does not begin as the one there")


def begins_of(place: Place) -> dict[str, str]:
    """SHA-256 of the first record of each partition that has one: of two logs it is hardly the same."""
    found = {}
    for partition in open_log(place).queues:
        record = _first_record(partition)
        if record is not None:
            found[partition.name] = hashlib.sha256(record).hexdigest()
    return found


def _first_record(partition: PartitionLog) -> bytes | None:
    for block in partition.read(0, 1):
        return block.records[0] if block.first_offset == 0 else None
    return None


def write_about(directory: Path, about: dict[str, Any]) -> None:
    write_whole(directory / CUT, json.dumps(about, sort_keys=True) + "\n")


def write_sums(directory: Path, written: set[Path]) -> str:
    """Bring SHA256SUMS up to date, `written` being files that are new; its own SHA-256."""
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
    """Whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
