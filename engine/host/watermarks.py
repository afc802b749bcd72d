"""Limits as operators write them: a part of the machine's memory, or bytes with RabbitMQ's units.

    0.4    50MB    1GiB    1073741824    mem_relative:1.5

k, M, G, T and kiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB are powers of 1000 (rabbit_resource_monitor_misc).
The machine's memory is the least of the built-in memory and of the limits of this process's control groups (a
container's).
"""

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rewindmq.projections import system_calls

SIZE: Final = re.compile(r"([0-9]+) ?(?:([kmgt])(ib?|b)?)?", re.IGNORECASE)
POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
BARE_LEAST: Final = 1_000_000  # bytes; a smaller number needs a unit
MEM_RELATIVE: Final = "mem_relative"
ABSOLUTE: Final = "absolute"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: `fraction` of the memory, or `absolute` bytes. `str` gives a text that the parsers take."""

    fraction: float | None = None
    absolute: int = 0

    def of(self, memory_bytes: int) -> int:
        """Return the limit in bytes, for this much memory."""
        return self.absolute if self.fraction is None else int(self.fraction * memory_bytes)

    def __str__(self) -> str:
        return str(self.absolute) if self.fraction is None else f"{MEM_RELATIVE}:{self.fraction:g}"


MEMORY_WATERMARK: Final = Limit(0.4)  # RabbitMQ's defaults
DISK_FREE_LIMIT: Final = Limit(absolute=50_000_000)


def size_of(text: str) -> int:
    """Parse a size; return bytes. ValueError: the text is not a size."""
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"'{text}' is not a size: give bytes, or a number with kB, MB, GB, TB, kiB, MiB, GiB or TiB")
    unit, suffix = found[2], found[3]
    if unit is None:
        return int(found[1])
    base = 1000 if suffix is not None and suffix.lower() == "b" else 1024
    power: int = base ** POWERS[unit.lower()]
    return int(found[1]) * power


def fraction_of(text: str, most: float) -> float:
    """Parse a number from 0 to `most`. ValueError: the text is not one."""
    try:
        fraction = float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None
    if not 0 <= fraction <= most:
        raise ValueError(f"'{text}' is not between 0 and {most:g}")
    return fraction


def memory_watermark(text: str) -> Limit:
    """Parse a limit of memory.

    `0.4`, as every number up to 1, is a fraction of the memory. All else is a size, with or without `absolute:`.
    ValueError: the text is neither, or a few bytes without a unit: `40` may be meant as a percentage."""
    name, colon, value = text.partition(":")
    if colon and name == ABSOLUTE:
        return Limit(absolute=size_of(value))
    if re.fullmatch(r"[01]?\.[0-9]*|[01]", text.strip()):
        return Limit(fraction_of(text, 1.0))
    size = size_of(text)
    if size < BARE_LEAST and text.strip().isdigit():
        raise ValueError(f"'{text}' is neither a fraction up to 1 nor a size: give 0.4, 2GB or absolute:BYTES")
    return Limit(absolute=size)


def disk_limit(text: str) -> Limit:
    """Parse a limit of free disk space: a size, or a multiple of the memory (`mem_relative:1.5`). ValueError."""
    name, colon, value = text.partition(":")
    if colon and name == MEM_RELATIVE:
        return Limit(fraction_of(value, 1_000.0))
    return Limit(absolute=size_of(text))


def memory_of_machine(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the most bytes of memory that this process may have."""
    built_in = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([built_in, *_limits_of_groups(proc, groups)])


def _limits_of_groups(proc: Path, groups: Path) -> list[int]:
    """Return the memory limits of the process's control group and all groups above it, versions 1 and 2.

    A container sees its own group as the top, or (version 1) under a path that does not exist. So the top counts,
    too."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        below = Path(path.lstrip("/"))
        for group in (top / below, *((top / each) for each in below.parents), top):
            limit = _number_in(group / name)
            if limit is not None:
                found.append(limit)
    return found


def _number_in(file: Path) -> int | None:
    """Return the number in a file; None without a limit ("max") or a file."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


class Resident:
    """Measures the memory of this process.

    Its file stays open, because later there may be no free descriptor."""

    def __init__(self) -> None:
        try:
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no Linux
            self._statm = -1

    def bytes(self) -> int:
        """Return the resident memory of this process; without Linux, the largest so far."""
        if self._statm < 0:
            return system_calls.most_resident_bytes()
        return int(os.pread(self._statm, 100, 0).split()[1]) * resource.getpagesize()

    def close(self) -> None:
        """Close the file."""
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    resident = Resident()
    try:
        return resident.bytes()
    finally:
        resident.close()
