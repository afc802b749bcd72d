"""Every command in docs/tutorials prints what its page says. Each page gets its own broker."""

from pathlib import Path

import pytest

from tests.support.page_runner import Page, matches
from tests.support.running import ROOT, RunningBroker

PAGES = sorted((ROOT / "docs" / "tutorials").glob("[!R]*.md"))


def test_there_are_tutorials() -> None:
    assert len(PAGES) >= 4


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_commands_print_what_it_says(page: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "rewindmq-data").symlink_to(tmp_path / "data")  # where `rewindmq start` has it
    broker = RunningBroker(tmp_path / "data")
    try:
        assert Page(work, broker).run(page.read_text()) >= 5
    finally:
        assert broker.stop() == 0, "".join(broker.errors)


def test_a_page_that_says_something_else_is_found() -> None:
    printed = ["name    messages", "disk    1", "screen  0"]
    assert matches(printed, ["name messages", "...", "screen  0"])
    assert matches(printed, ["name ...", "disk  1", "..."])
    assert not matches(printed, ["name messages", "screen  0"])
    assert not matches(printed, ["name messages", "disk 2", "..."])
    assert not matches([], ["name messages"])
