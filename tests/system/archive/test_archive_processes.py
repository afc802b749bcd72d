"""`rewindmq start --processes N --archive` (B-67): the archiver beside several processes. Each kind of process is
killed. What the archive has is the history that the workers made.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from rewindmq.engine.log.archive.manifest import Manifest
from rewindmq.engine.log.archive.objects import open_objects
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.moments import now
from tests.support.worker_processes import SNAPSHOT_EVENTS, WorkerProcesses, agreed_claims
from tests.system.archive.conftest import Place
from tests.system.archive.test_archive_beside import SOON, all_archived, archiver_of, bodies, publish, require_same
from tests.system.http.test_http_metrics import families
from tests.system.process.test_worker_processes import asked, connection_at

pytestmark = pytest.mark.timeout(300)
LAG, SIZE = "rewindmq_archive_lag_records", "rewindmq_history_bytes"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "archive"), {}, tmp_path / "archive")


def archives(broker: WorkerProcesses) -> list[dict[str, Any]]:
    """How the archive does, as each worker shows it."""
    return [asked(broker, port, "overview")["history"]["archive"] for port in broker.http_ports]


def burst(broker: WorkerProcesses) -> None:
    """Publish so much that workers take a snapshot."""
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("many", durable=True)
        for _ in range(SNAPSHOT_EVENTS + 10):
            channel.basic_publish("", "many", b"")
        channel.queue_purge("many")


def named(broker: WorkerProcesses, number: int) -> set[str]:
    """Those of these metrics that a worker has."""
    url = f"http://{broker.host}:{broker.http_ports[number - 1]}/metrics"
    found = families(httpx.get(url, auth=("guest", "guest"), trust_env=False).text)
    return {LAG, SIZE} & set(found)


def killed(broker: WorkerProcesses) -> None:
    """End the first process. The others end by themselves."""
    workers, archiver = broker.pids(), archiver_of(broker)
    assert archiver is not None
    broker.kill()
    broker.until_ended(workers | {0: archiver})


def kill_archiver_and_worker(broker: WorkerProcesses, number: int) -> None:
    archiver = archiver_of(broker)
    assert archiver is not None
    os.kill(archiver, signal.SIGKILL)
    broker.kill_worker(number)
    broker.until_said(f"worker {number} ended (signal 9)")


def test_b67_the_history_of_several_processes_is_archived(tmp_path: Path, place: Place) -> None:
    data = tmp_path / "data"
    broker = WorkerProcesses(data, "--archive", place.url, *SOON)
    publish(broker, range(20))
    burst(broker)
    all_archived(broker)
    url = open_objects(place.url).url
    for item in archives(broker):
        assert (item["url"], item["failures"], item["error"]) == (url, 0, None)
        assert item["archived_bytes"] > 0
    kill_archiver_and_worker(broker, 1)
    publish(broker, range(20, 30))  # the other one goes on
    broker.until_said("worker 1 is ready again")
    all_archived(broker)
    for item in archives(broker):
        assert item["failures"] == 1, "a worker that began later knows it, too"
        assert item["lag_records"] == 0
    until(lambda: named(broker, 1) == {LAG, SIZE}, "worker 1 has no metrics of the history")
    assert named(broker, 2) == set(), "a sum would count the log twice"
    killed(broker)
    broker = WorkerProcesses(data, "--archive", place.url, *SOON)
    publish(broker, range(30, 40))
    all_archived(broker)
    assert broker.stop() == 0
    assert not [line for line in broker.errors if "Traceback" in line], "".join(broker.errors)
    assert agreed_claims(data) > 0
    require_same(data, place)
    manifests = [Manifest.load(open_objects(place.url), path.name) for path in sorted((data / "log").glob("queues-*"))]
    assert any(manifest.snapshots for manifest in manifests), "snapshots of workers are archived"
    rolled = run("archive", "-q", "--roll", "--data", str(data), "--to", place.url)
    assert rolled.returncode == 0, rolled.stderr
    again = tmp_path / "again"
    done = run("recover", "-q", "--archive", place.url, "--data", str(again))
    assert done.returncode == 0, done.stderr
    for directory in sorted((data / "log").glob("*-*")):
        for path in segment_files(directory)[:-1]:
            assert (again / "log" / directory.name / path.name).read_bytes() == path.read_bytes()
    recovered = WorkerProcesses(again)
    assert [int(body) for body in bodies(recovered)] == list(range(40))
    assert recovered.stop() == 0


def test_b67_what_is_archived_leaves_the_disk_beside_several_processes(tmp_path: Path, place: Place) -> None:
    """Queues stay as they are, at a worker that had paused the partition, too. The past is read from the archive."""
    data, confirmed = tmp_path / "data", 0
    options = ("--archive", place.url, *SOON, "--keep-local", "300kB", "--partitions", "2")

    def starts() -> list[int]:
        return [base_offset_of(segment_files(data / "log" / f"queues-{number}")[0]) for number in range(2)]

    def publish_until_cut(broker: WorkerProcesses) -> None:
        nonlocal confirmed
        before = max(starts())

        def was_cut() -> bool:
            nonlocal confirmed
            publish(broker, range(confirmed, confirmed + 5))
            confirmed += 5
            return max(starts()) > before

        until(was_cut, "nothing is removed", seconds=120)

    broker = WorkerProcesses(data, *options)
    publish(broker, range(12))
    confirmed = 12
    moment = now()
    for number in (1, 2):
        publish_until_cut(broker)
        kill_archiver_and_worker(broker, number)
        broker.until_said(f"worker {number} is ready again")
    publish_until_cut(broker)
    killed(broker)
    broker = WorkerProcesses(data, *options)
    publish_until_cut(broker)
    all_archived(broker)
    require_same(data, place)
    for number, port in enumerate(broker.http_ports, 1):
        shown = run("rewind", "orders", "--at", moment, "--formatter", "json", REWINDMQ_URL=f"http://127.0.0.1:{port}")
        assert shown.returncode == 0, shown.stderr
        assert [int(each["payload"]) for each in json.loads(shown.stdout)] == list(range(12))
        with connection_at(broker, number) as connection:
            assert connection.channel().queue_declare("orders", passive=True).method.message_count == confirmed
    with connection_at(broker, 1) as one, connection_at(broker, 2) as two:
        channels = [one.channel(), two.channel()]
        got = [int(channels[number % 2].basic_get("orders", auto_ack=True)[2]) for number in range(confirmed)]
    assert got == list(range(confirmed))
    assert broker.stop() == 0
    assert not [line for line in broker.errors if "Traceback" in line], "".join(broker.errors)
    done = run("verify", "--data", str(data))
    assert done.returncode == 0, done.stderr


def test_all_workers_show_the_archive_and_the_limit_with_which_the_broker_began(tmp_path: Path, place: Place) -> None:
    """The file of settings may change before a worker is started again."""
    settings = tmp_path / "rewindmq.toml"
    with_archive, without = f'archive = "{place.url}"\n', 'keep_history = "2h"\n'
    url = open_objects(place.url, make=True).url
    for begun, changed, shown, seconds in ((without, with_archive, None, 7_200), (with_archive, without, url, None)):
        settings.write_text(begun)
        broker = WorkerProcesses(tmp_path / "data", "--config", str(settings))
        settings.write_text(changed)
        broker.kill_worker(1)
        broker.until_said("worker 1 is ready again")
        for port in broker.http_ports:
            history = asked(broker, port, "overview")["history"]
            assert (history["archive"] and history["archive"]["url"]) == shown
            assert history["trims"]["keep_seconds"] == seconds
        archiver = archiver_of(broker)
        assert archiver is not None
        os.kill(archiver, signal.SIGSTOP)
        assert broker.stop() == 0, "an archiver that stands still holds up the end of the broker"
        assert not [line for line in broker.errors if "Traceback" in line], "".join(broker.errors)


def test_a_url_that_is_none_prevents_the_start_of_several_processes(tmp_path: Path) -> None:
    done = run("start", "--data", str(tmp_path / "data"), "--processes", "2", "--archive", "ftp://host/x")
    assert done.returncode == 64
    assert done.stderr.startswith("rewindmq: archive: ftp://: an archive is at s3://")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data" / "log").exists()
