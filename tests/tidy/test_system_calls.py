"""Calls that differ between Linux and macOS are in one file."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THE_FILE = ROOT / "projections/system_calls.py"
# Calls that macOS lacks, or that mean something else there.
OF_ONE_SYSTEM = {
    "CLOCK_BOOTTIME",
    "O_DIRECT",
    "O_TMPFILE",
    "SOCK_CLOEXEC",
    "SOCK_NONBLOCK",
    "copy_file_range",
    "epoll",
    "eventfd",
    "fdatasync",
    "fsync",
    "memfd_create",
    "pidfd_open",
    "posix_fadvise",
    "posix_fallocate",
    "prlimit",
    "pthread_getcpuclockid",
    "ru_maxrss",
    "sched_getaffinity",
    "setrlimit",
    "splice",
}


def used(path: Path) -> list[str]:
    """The calls of one system that a file has."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in OF_ONE_SYSTEM
    ]


def test_calls_that_differ_between_systems_are_in_one_file() -> None:
    sources = [
        path for room in ("engine", "projections", "schemas", "spark_replay") for path in (ROOT / room).rglob("*.py")
    ]
    assert used(THE_FILE), "no file is looked at"
    found = [call for path in sorted(sources) if path != THE_FILE for call in used(path)]
    assert not found, f"{found} belong in {THE_FILE.name}"
