"""A broker's files are for its user and group alone."""

import stat
from collections.abc import Callable
from pathlib import Path

import pika

from tests.support.running import RunningBroker


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
        "log",
        "state",
        "snapshots",
        "log/queues-0",
    }
    assert [name for name, mode in modes.items() if mode & 0o027] == []
    for path in (data, *data.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    again = start_broker(data)
    assert [name for name, mode in modes_of(data).items() if mode & 0o027] == []
    assert again.stop() == 0
    told = "".join(again.errors)
    assert f"{data}: other users of this machine could read {len(modes)} files and directories" in told
    assert f"{data}: other users of this machine may list it (mode 0777)" in told
