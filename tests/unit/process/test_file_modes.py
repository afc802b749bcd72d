"""Only RewindMQ's own user and its group can read the files that it writes. Other files stay as they are."""

import logging
import stat
from pathlib import Path

import pytest

from rewindmq.engine.file_modes import close_to_others


def test_what_is_not_ours_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("an operator's")
    (tmp_path / "state").symlink_to(elsewhere)
    (tmp_path / "log").mkdir(mode=0o700)
    (tmp_path / "log" / "link").symlink_to(elsewhere / "file")
    for path in (elsewhere, elsewhere / "file"):
        path.chmod(0o755)
    with caplog.at_level(logging.INFO):
        close_to_others(tmp_path)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
    assert stat.S_IMODE((elsewhere / "file").stat().st_mode) == 0o755
    assert caplog.text == ""
