"""What RewindMQ writes is read by its own user and its group, and by nobody else."""

import logging
import stat
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from rewindmq.engine.file_modes import close_to_others
from tests.running import RunningBroker


def modes_of(data: Path) -> dict[str, int]:
    return {str(path.relative_to(data)): stat.S_IMODE(path.lstat().st_mode) for path in data.rglob("*")}


def test_a_broker_writes_for_its_user_and_group(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> None:
    """In a directory that an older version has made, everything that was wider is closed, too."""
    data = tmp_path / "data"
    broker = start_broker(data)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.channel().queue_declare("q", durable=True)
        connection.channel().basic_publish("", "q", b"private", pika.BasicProperties(delivery_mode=2))
    assert broker.stop() == 0
    modes = modes_of(data)
    assert stat.S_IMODE(data.stat().st_mode) == 0o750
    assert {name for name in ("log", "state", "snapshots", "log/queues-0") if modes[name] == 0o750} == {
        "log", "state", "snapshots", "log/queues-0",
    }  # fmt: skip
    assert [name for name, mode in modes.items() if mode & 0o027] == []
    for path in (data, *data.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    again = start_broker(data)
    assert [name for name, mode in modes_of(data).items() if mode & 0o027] == []
    assert again.stop() == 0
    told = "".join(again.errors)
    assert f"{data}: {len(modes)} files and directories were open to other users" in told
    assert f"{data}: other users of this machine may list it (mode 0777)" in told


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
