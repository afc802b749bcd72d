"""Makes and reads the directory of an embedded log: its layout, which never changes.

    DIR/log/_reserve             room for a full disk (reserve.py)
    DIR/log/archive.json         which archive has the history, if any (engine/log/archive/directory_note.py)
    DIR/log/layout.json          {"format": 1, "queue_partitions": N}, written once, when all of these are made.
                                 Of a fork also {"history": its identity}, which the metadata log decides
    DIR/log/metadata-0/          segments and their sidecars
    DIR/log/queues-0/ .. queues-N-1/

A queue's partition is its name's hash modulo N: with another N every queue would move away from its history.
"""

import json
import os
from pathlib import Path

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.segments import sync_directory

METADATA = "metadata-0"
RECOVERY = "recovery.json"  # beside the layout, until a recovery from an archive is done (archive/recovery.py)
MAX_PARTITIONS = 1_024
NEW_PARTITIONS = 2  # one for each core of a small machine when Spark folds (ARCHITECTURE.md)
_FORMAT = 1


def partition_directory(data_dir: Path, name: str) -> Path:
    """The directory of a partition."""
    return data_dir / "log" / name


def queue_partition(number: int) -> str:
    """The name of a queue partition."""
    return f"queues-{number}"


def read_layout(data_dir: Path) -> int:
    """The number of queue partitions. The directory of each exists, and no others.

    Raises LogError if there is no log, or one that this version doesn't know."""
    file = layout_file(data_dir)
    try:
        layout = json.loads(file.read_text())
        found = layout["format"], layout["queue_partitions"]
    except FileNotFoundError:
        raise LogError(f"{data_dir}: no RewindMQ log is here ({file} is missing)") from None
    except OSError as error:
        raise LogError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise LogError(f"{file}: not a description of a log") from None
    if found[0] != _FORMAT:
        raise LogError(f"{file}: format {found[0]}, this version reads format {_FORMAT}")
    if not isinstance(found[1], int) or not 1 <= found[1] <= MAX_PARTITIONS:
        raise LogError(f"{file}: {found[1]!r} queue partitions")
    for name in (METADATA, *map(queue_partition, range(found[1]))):
        if not partition_directory(data_dir, name).is_dir():
            raise LogError(f"{partition_directory(data_dir, name)}: this partition of the log ({file}) is gone")
    _require_no_more(data_dir, found[1])
    return found[1]


def prepare(data_dir: Path, partitions: int | None) -> tuple[int, bool]:
    """Make the log's directories, unless there is a log.

    Returns how many queue partitions it has, and whether it is new. `partitions` None: the existing number, in a new
    log `NEW_PARTITIONS`. Raises LogError if there is another number."""
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise LogError(f"a log has 1 to {MAX_PARTITIONS} queue partitions, not {partitions}")
    if layout_file(data_dir).exists():
        there = read_layout(data_dir)
        if partitions not in (None, there):
            why = f"made with {there} queue partitions, and a log keeps its number; this start asks for {partitions}"
            raise LogError(f"{data_dir}: this log was {why}")
        return there, False
    if (data_dir / "log" / RECOVERY).exists():
        raise LogError(f"{data_dir}: its recovery from an archive was cut short: run `rewindmq recover` again")
    count = NEW_PARTITIONS if partitions is None else partitions
    _require_no_more(data_dir, count)
    for name in (METADATA, *map(queue_partition, range(count))):
        partition_directory(data_dir, name).mkdir(exist_ok=True)
    return count, True


def _require_no_more(data_dir: Path, partitions: int) -> None:
    """Raise LogError if a directory has a partition that the layout does not count: readers would not see it."""
    for directory in sorted((data_dir / "log").glob("queues-*")):
        number = directory.name.removeprefix("queues-")
        if number.isdecimal() and int(number) >= partitions:
            raise LogError(f"{directory} exists, but {layout_file(data_dir)} names {partitions} only")


def read_fork(data_dir: Path) -> str | None:
    """The identity of the fork that this log is, by its layout; None: it is no fork, or has no layout.

    Raises LogError."""
    file = layout_file(data_dir)
    try:
        found = json.loads(file.read_text()).get("history")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError):
        raise LogError(f"{file}: not a description of a log") from None
    return None if found is None else str(found)


def write_layout(data_dir: Path, partitions: int, fork: str | None = None) -> None:
    """Write the layout, durably: the log is made, every partition has its first segment.

    `fork`: the identity of the history, if it is a fork."""
    file = layout_file(data_dir)
    new = file.with_name(file.name + ".new")
    layout: dict[str, object] = {"format": _FORMAT, "queue_partitions": partitions}
    if fork is not None:
        layout["history"] = fork
    new.write_text(json.dumps(layout) + "\n")
    descriptor = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(new, file)
    sync_directory(file.parent)
    sync_directory(data_dir)


def layout_file(data_dir: Path) -> Path:
    """The file whose presence says that there is a log."""
    return data_dir / "log" / "layout.json"
