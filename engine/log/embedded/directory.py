"""Makes and reads the directory and the layout of an embedded log.

    DIR/log/_reserve             room for a full disk (reserve.py)
    DIR/log/archive.json         the archive of the history, if any (engine/keeping/archive/directory_note.py)
    DIR/log/layout.json          {"format": 1, "queue_partitions": N}, written once, when all of these are made.
                                 Of a fork also {"history": its identity}, which the metadata log decides
    DIR/log/growing.json         {"format": 1, "queue_partitions": N}, while partitions are added (`begin_growing`)
    DIR/log/metadata-0/          segments and their sidecars
    DIR/log/queues-0/ .. queues-N-1/
    DIR/snapshots/               states

N grows only by a repartition (engine/placement/repartition.py), because a queue's partition follows from N.
"""

import os
from pathlib import Path

from rewindmq.engine.log.contract import LogError
from rewindmq.projections import system_calls
from rewindmq.schemas.formats import formatted, values_in

METADATA = "metadata-0"
GROWING = "growing.json"  # beside the layout, until the added partitions are made
RECOVERY = "recovery.json"  # beside the layout, until a recovery from an archive is done (archive/recovery.py)
MAX_PARTITIONS = 1_024
NEW_PARTITIONS = 2  # one for each core of a small machine when Spark folds (ARCHITECTURE.md)


def partition_directory(data_dir: Path, name: str) -> Path:
    """Return the directory of a partition."""
    return data_dir / "log" / name


def queue_partition(number: int) -> str:
    """Return the name of a queue partition."""
    return f"queues-{number}"


def read_layout(data_dir: Path) -> int:
    """Return the number of queue partitions. The directory of each exists, and no others.

    Raises LogError if there is no log, or one unknown to this version."""
    file = layout_file(data_dir)
    try:
        found = values_in(file.read_text(), file, LogError)["queue_partitions"]
    except FileNotFoundError:
        raise LogError(f"{data_dir}: no RewindMQ log is here ({file} is missing)") from None
    except OSError as error:
        raise LogError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise LogError(f"{file}: damaged: it does not describe a log. Restore it from a backup") from None
    if not isinstance(found, int) or not 1 <= found <= MAX_PARTITIONS:
        raise LogError(f"{file}: damaged: {found!r} is not a number of queue partitions from 1 to {MAX_PARTITIONS}")
    for name in (METADATA, *map(queue_partition, range(found))):
        if not partition_directory(data_dir, name).is_dir():
            raise LogError(f"{partition_directory(data_dir, name)}: this partition of the log ({file}) is gone")
    _require_no_more(data_dir, found)
    return found


def prepare(data_dir: Path, partitions: int | None) -> tuple[int, bool]:
    """Make the log's directories, unless there is a log.

    Returns its number of queue partitions, and True if it is new. `partitions` None: the existing number, in a new log
    `NEW_PARTITIONS`. Raises LogError if there is another number."""
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise LogError(f"a log has 1 to {MAX_PARTITIONS} queue partitions, not {partitions}")
    if layout_file(data_dir).exists():
        there = read_layout(data_dir)
        if partitions not in (None, there):
            raise other_number(data_dir, there, partitions)
        return there, False
    if (data_dir / "log" / RECOVERY).exists():
        raise LogError(f"{data_dir}: its recovery from an archive was cut short: run `rewindmq recover` again")
    count = NEW_PARTITIONS if partitions is None else partitions
    _require_no_more(data_dir, count)
    for name in (METADATA, *map(queue_partition, range(count))):
        partition_directory(data_dir, name).mkdir(exist_ok=True)
    return count, True


def other_number(data_dir: Path, there: int, asked: int) -> LogError:
    """Return the error for a start with another number of queue partitions."""
    why = f"made with {there} queue partitions, and a log keeps its number; this start asks for {asked}"
    return LogError(f"{data_dir}: this log was {why}")


def begin_growing(data_dir: Path, partitions: int) -> None:
    """Note durably that the log is to have `partitions` queue partitions, so that a crash leaves none unexplained."""
    _write_durably(data_dir / "log" / GROWING, {"queue_partitions": partitions})


def end_growing(data_dir: Path) -> None:
    """Remove the note of `begin_growing`: the layout has the new number."""
    (data_dir / "log" / GROWING).unlink(missing_ok=True)


def _growing_to(data_dir: Path) -> int:
    """Return the number of queue partitions to which the log was growing at a crash; 0: it was not."""
    file = data_dir / "log" / GROWING
    try:
        return int(values_in(file.read_text(), file, LogError)["queue_partitions"])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        raise LogError(f"{file}: damaged: it does not say how many partitions are being added") from None


def _require_no_more(data_dir: Path, partitions: int) -> None:
    """Raise LogError if a directory has a partition outside the layout, because readers would not see it."""
    partitions, named = max(partitions, _growing_to(data_dir)), partitions
    for directory in sorted((data_dir / "log").glob("queues-*")):
        number = directory.name.removeprefix("queues-")
        if number.isdecimal() and int(number) >= partitions:
            raise LogError(f"{directory} exists, but {layout_file(data_dir)} names {named} only")


def read_fork(data_dir: Path) -> str | None:
    """Return the identity of this log as a fork, from its layout; None: it is not a fork, or has no layout.

    Raises LogError."""
    file = layout_file(data_dir)
    try:
        found = values_in(file.read_text(), file, LogError).get("history")
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise LogError(f"{file}: damaged: it does not describe a log. Restore it from a backup") from None
    return None if found is None else str(found)


def write_layout(data_dir: Path, partitions: int, fork: str | None = None) -> None:
    """Write the layout durably, once every partition has its first segment.

    `fork`: the identity of the history, if it is a fork."""
    layout: dict[str, object] = {"queue_partitions": partitions}
    if fork is not None:
        layout["history"] = fork
    _write_durably(layout_file(data_dir), layout)
    system_calls.sync_directory(data_dir)


def _write_durably(file: Path, content: dict[str, object]) -> None:
    new = file.with_name(file.name + ".new")
    new.write_text(formatted(content) + "\n")
    descriptor = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
    try:
        system_calls.sync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(new, file)
    system_calls.sync_directory(file.parent)


def layout_file(data_dir: Path) -> Path:
    """Return the file whose presence means that there is a log."""
    return data_dir / "log" / "layout.json"
