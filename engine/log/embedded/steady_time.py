"""The log time from which the age of history is counted, which no jump of a clock moves far.

    now_ms = steady_now(data_dir / "log" / "keep_local.json", newest_ms, newest_ms, time.monotonic())

It follows the newest log time, at most twice as fast as the machine's monotonic clock, from run to run. A file notes
it. The first run only notes a beginning.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.schemas.formats import formatted, values_in

APART_SECONDS: Final = 30.0  # between two runs, by the monotonic clock, for the second one to count
CATCHING_UP: Final = 2  # the highest speed of the steady time, in multiples of the monotonic clock's


def steady_ms(noted_ms: int, elapsed_seconds: float, newest_ms: int) -> int:
    """Return the current steady time, from the one noted `elapsed_seconds` ago by the monotonic clock.

    It follows the newest log time at most `CATCHING_UP` times as fast as that clock."""
    return min(newest_ms, noted_ms + int(CATCHING_UP * 1_000 * elapsed_seconds))


def steady_now(note: Path, newest_ms: int, first_ms: int, monotonic: float) -> int | None:
    """Note and return the current steady time; None if no earlier run, or only a very recent one, has noted one.

    `newest_ms`: the newest log time. `first_ms`: the time that the first run notes. Raises LogError for another format;
    OSError."""
    found: int | None = None
    try:
        noted = values_in(note.read_text(), note, LogError)
        noted_ms, noted_at = int(noted["log_ms"]), float(noted["monotonic_seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        noted_ms = first_ms
    else:
        # The machine's monotonic clock begins anew at a boot; then at least the time since the boot has passed.
        elapsed = monotonic - noted_at if monotonic >= noted_at else monotonic
        if elapsed < APART_SECONDS:
            return None
        noted_ms = found = steady_ms(noted_ms, elapsed, newest_ms)
    new = note.with_name(f"_{note.name}.new")
    new.write_text(formatted({"log_ms": noted_ms, "monotonic_seconds": monotonic}) + "\n")
    new.replace(note)
    return found


def newest_ms_of(directories: Iterable[Path]) -> int:
    """Return the newest time of the last records of these partitions; 0 if they have none."""
    return max(map(_newest_ms, directories), default=0)


def _newest_ms(directory: Path) -> int:
    reader = PartitionReader(directory)
    end = reader.next_offset
    return max((block.max_timestamp_ms for block in reader.read(end - 1, end)), default=0) if end else 0
