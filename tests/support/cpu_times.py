"""Pytest's hooks that print, where CI is set, the CPU time of the tests of each folder.

It includes a test's fixtures and the processes that have ended with it. `make check` is tests/unit and tests/tidy.
"""

import os
import resource
import time
from collections import Counter
from collections.abc import Iterator

import pytest

_BEGAN = pytest.StashKey[float]()
NAME = "cpu_seconds"


def _seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = _seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append((NAME, _seconds() - item.stash[_BEGAN]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not os.environ.get("CI"):
        return
    folders: Counter[str] = Counter()
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if getattr(report, "when", "") == "teardown":
            parts = report.nodeid.partition("::")[0].split("/")[1:-1]
            folder = "/".join(parts[: 2 if parts[:1] == ["system"] else 1])
            folders[folder] += sum(value for name, value in report.user_properties if name == NAME)
    if folders:
        shown = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in folders.most_common())
        of_check = folders["unit"] + folders["tidy"]
        terminalreporter.write_line(
            f"CPU of tests, in seconds: {folders.total():.0f} (make check {of_check:.0f}): {shown}"
        )
