"""A log that lost its end, or lies beside the state of another history: nothing is passed off as whole.

the last segments gone, the state ahead        exit code 65, one line, all files as they were
the whole directory of an earlier time,
the archive ahead                              the same
the same with --accept-lost-end                starts; the state and the snapshots that know more are kept aside
the state or the snapshots of another broker   made anew from the log, the others kept aside
a tail that was never synced                   no matter (test_durability_kills.py, test_durability_damage.py)
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pika
import pytest

from tests.support.deadlines import until
from tests.support.kept_queue import consume, publish, verify
from tests.support.ports import free_port
from tests.support.running import ROOT, RunningBroker

pytestmark = pytest.mark.long

ONE = ("--partitions", "1")


def start(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail."""
    ports = ("--amqp-port", str(free_port()), "--http-port", str(free_port()))
    command = [sys.executable, "-m", "rewindmq.engine", "--data", str(data), *ports, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def files(directory: Path) -> dict[str, str]:
    """SHA-256 of all files but RocksDB's own notes of having been opened."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.parent.name != "state" and path.name != "lock"
    }


def rolled_back(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> Path:
    """A data directory whose log is as it was 200 confirmed messages ago."""
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, 100)
    broker.stop()
    shutil.copytree(data / "log", tmp_path / "older")
    broker = start_broker(data, *ONE)
    publish(broker, 100, 200)
    broker.stop()
    shutil.rmtree(data / "log")
    shutil.copytree(tmp_path / "older", data / "log")
    return data


def test_a_log_that_lost_its_end_does_not_start_unless_that_is_accepted(
    tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    data = rolled_back(tmp_path, start_broker)
    before = files(data)
    ended = start(data, *ONE)
    assert ended.returncode == 65, ended.stderr
    line = ended.stderr.splitlines()[-1]
    assert line.startswith(f"rewindmq: {data}: the log lost its end: metadata-0 ends at offset")
    assert f"; queues-0 ends at offset {ended_at(line)}, and {data}/state has it up to offset" in line
    assert "--accept-lost-end" in line
    assert files(data) == before
    assert start(data, *ONE).stderr.splitlines()[-1] == line, "the second start says the same"

    newest = max((data / "snapshots" / "queues-0").glob("*.snapshot"))
    again = start_broker(data, *ONE, "--accept-lost-end")
    assert consume(again) == list(range(100))
    [aside] = (data / "aside").iterdir()
    assert (aside / "queues-0" / newest.name).exists()
    assert (aside / "state" / "CURRENT").exists()
    assert any("records are missing) (--accept-lost-end)" in said and str(aside) in said for said in again.errors)
    publish(again, 100, 10)
    assert again.stop() == 0
    assert verify(data).returncode == 0
    assert consume(start_broker(data, *ONE)) == list(range(110)), "the next start accepts nothing, and needs nothing"


def test_a_directory_that_is_older_than_its_archive_does_not_start(
    tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    data, older, url = tmp_path / "data", tmp_path / "older", f"file://{tmp_path}/archive"
    options = (*ONE, "--archive", url, "--segment-age", "1s", "--archive-lag", "1s")
    broker = start_broker(data, *options)
    publish(broker, 0, 100)
    broker.stop()
    shutil.copytree(data, older)
    broker = start_broker(data, *options)
    publish(broker, 100, 200)
    until(lambda: all_archived(broker), "the archive stays behind")
    broker.stop()
    before = files(older)
    ended = start(older, *options)
    assert ended.returncode == 65, ended.stderr
    line = ended.stderr.splitlines()[-1]
    assert f"queues-0 ends at offset {ended_at(line)}, and the archive has it up to offset" in line
    assert "--accept-lost-end" in line
    assert files(older) == before
    broker = start_broker(older, *options, "--accept-lost-end")
    assert consume(broker) == list(range(100))
    broker.stop()
    assert consume(start_broker(data, *options)) == list(range(300)), "the archive is as it was"


def all_archived(broker: RunningBroker) -> bool:
    answer = httpx2.get(f"{broker.http_url}/api/overview", auth=("guest", "guest"), trust_env=False).json()
    return bool(answer["history"]["archive"]["lag_records"] == 0)


def ended_at(line: str) -> str:
    return line.split("queues-0 ends at offset ")[1].split(",")[0]


def test_a_whole_log_that_is_gone_is_no_new_beginning(
    tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, 20)
    broker.stop()
    shutil.rmtree(data / "log")
    ended = start(data, *ONE)
    assert ended.returncode == 65, ended.stderr
    assert "queues-0 ends at offset 0" in ended.stderr
    again = start_broker(data, *ONE, "--accept-lost-end")
    publish(again, 0, 3)
    assert consume(again) == [0, 1, 2]


def test_the_state_of_another_broker_is_moved_aside_and_made_anew(
    tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    broker = start_broker(mine, *ONE)
    publish(broker, 0, 100)
    assert broker.stop() == 0
    broker = start_broker(other, *ONE)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.channel().queue_declare("elsewhere", durable=True)
    assert broker.stop() == 0
    for name in ("state", "snapshots"):
        shutil.rmtree(mine / name)
        shutil.copytree(other / name, mine / name)
    again = start_broker(mine, *ONE)
    assert consume(again) == list(range(100))
    [aside] = (mine / "aside").iterdir()
    for name in ("state", "snapshots"):
        assert (aside / name).is_dir()
        said = f"{mine / name} belongs to another history than the log: it is made anew from the log, and was moved to"
        assert any(said in line and str(aside / name) in line for line in again.errors), again.errors
    assert again.stop() == 0
    assert verify(mine).returncode == 0
    assert consume(start_broker(mine, *ONE)) == list(range(100))
    assert len(list((mine / "aside").iterdir())) == 1, "what was made anew is this history's"
