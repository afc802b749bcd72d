"""`rewindmq start --archive`: the archiver beside a broker, on a real S3 server and on a directory. It is killed, the
broker is killed, the store goes away, is full, or refuses the login (B-25).
"""

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from rewindmq.engine.keeping.archive.directory_note import archive_of
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from tests.support.archive_commands import Place
from tests.support.archiving_brokers import (
    SOON,
    Start,
    all_archived,
    archive_item,
    archiver_of,
    history_item,
    log_lines,
    publish,
    require_same,
)
from tests.support.commands import COMMAND
from tests.support.deadlines import until
from tests.support.examples import rounds
from tests.support.forked import run
from tests.support.metrics import metrics
from tests.support.running import RunningBroker, start_process
from tests.support.s3.server import SECRET_KEY, S3Server
from tests.system.durability.full_disk import SmallDisk

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]  # the first test may have to build the S3 server


# -- all is well ------------------------------------------------------------------------------------------------------


@pytest.mark.rare(place=["directory"])
def test_what_happens_is_archived_beside_the_broker(begin: Callable[..., RunningBroker], place: Place) -> None:
    broker = begin(place)
    publish(broker, range(200))
    all_archived(broker)
    assert require_same(broker.data, place) >= 2
    item = archive_item(broker)
    assert item["url"] == open_objects(place.url).url == archive_of(broker.data)
    assert (item["failures"], item["error"], item["lag_seconds"]) == (0, None, 0)
    publish(broker, range(200, 220))
    all_archived(broker)
    assert archiver_of(broker) is not None
    assert broker.stop() == 0
    assert require_same(broker.data, place) >= 3


@pytest.mark.rare(place=["directory"])
def test_status_and_metrics_say_what_history_costs(begin: Callable[..., RunningBroker], place: Place) -> None:
    broker = begin(place)
    publish(broker, range(100))
    publish(broker, range(10), "other")
    all_archived(broker)
    until(lambda: history_item(broker)["local_bytes"], "the size of the history is not measured")
    shown = run("status", REWINDMQ_URL=broker.http_url).stdout
    url = open_objects(place.url).url
    for line in (f"Archive: {url}\n", "Archived until: 20", "Not archived: 0 records\n", "On this disk: "):
        assert line in shown
    assert "Archiving fails" not in shown
    (report,) = json.loads(run("status", "--formatter", "json", REWINDMQ_URL=broker.http_url).stdout)
    assert report["history"]["archive"]["url"] == url
    found = metrics(broker, "/metrics/per-object")
    tiers = {sample.labels["tier"]: sample.value for sample in found["rewindmq_history_bytes"].samples}
    assert set(tiers) == {"local", "archive"}
    assert tiers["archive"] == sum(sample.value for sample in found["rewindmq_archived_bytes"].samples) > 0
    for name in ("records", "bytes", "seconds"):
        lags = found[f"rewindmq_archive_lag_{name}"].samples
        assert {sample.labels["partition"] for sample in lags} == {"metadata-0", "queues-0", "queues-1"}
    assert [sample.value for sample in found["rewindmq_archive_failures"].samples] == [0]
    of_queues = {
        sample.labels["queue"]: sample.value
        for sample in found["rewindmq_queue_history_bytes"].samples
        if sample.labels["tier"] == "local"
    }
    assert set(of_queues) == {"orders", "other"}
    assert all(0 < size <= tiers["local"] for size in of_queues.values())
    assert "rewindmq_queue_history_bytes" not in metrics(broker, "/metrics")


def test_without_an_archive_the_history_is_measured(broker: RunningBroker) -> None:
    until(lambda: history_item(broker)["local_bytes"], "the size of the history is not measured")
    assert history_item(broker)["archive"] is None
    assert "Archive: (none)\n" in run("status", REWINDMQ_URL=broker.http_url).stdout
    found = metrics(broker, "/metrics")
    assert [sample.labels for sample in found["rewindmq_history_bytes"].samples] == [{"tier": "local"}]
    assert not [name for name in found if name.startswith("rewindmq_archive")]


def test_segment_age_alone_lets_another_archiver_work(start_broker: Start, place: Place) -> None:
    broker = start_broker(None, "--segment-age", "1s")
    publish(broker, range(50))
    until(lambda: len(segment_files(broker.data / "log" / "metadata-0")) > 1, "no segment is closed")
    rows = json.loads(
        run("archive", "--data", str(broker.data), "--to", place.url, "--formatter", "json", **place.environment).stdout
    )
    assert sum(row["segments"] for row in rows) > 0
    assert archive_of(broker.data) is not None


def test_the_hint_where_nothing_is_closed(broker: RunningBroker, tmp_path: Path) -> None:
    done = run("archive", "--data", str(broker.data), "--to", str(tmp_path / "archive"))
    assert done.returncode == 0
    assert done.stderr.startswith("Nothing is closed: ")
    assert "--roll" in done.stderr
    assert "--segment-age" in done.stderr
    shown = run(
        "archive_status", "--archive", str(tmp_path / "archive"), "--data", str(broker.data), "--format", "json"
    )
    assert all(row["waiting_since"].startswith("20") for row in json.loads(shown.stdout))


# -- what prevents a start ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("ftp://host/x", "rewindmq: archive: ftp://: an archive is at s3://"),
        ("s3://key:secret@bucket/x", "rewindmq: archive: the URL of an archive holds no credentials"),
        ("s3://", "rewindmq: archive: s3:"),
        ("/proc/none/archive", "rewindmq: archive: /proc/none/archive: No such file or directory"),
    ],
)
def test_a_url_that_is_none_prevents_the_start(url: str, line: str, tmp_path: Path) -> None:
    command = [str(COMMAND), "start", "--data", str(tmp_path / "data"), "--archive", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 64
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr
    assert not (tmp_path / "data" / "log").exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--archive-lag", "1m"), "--archive-lag needs --archive"),
        (("--segment-age", "soon"), "'soon' is not a duration"),
        (("--keep-local", "7d"), "--keep-local needs --archive"),
        (("--archive", "s3://b/p", "--keep-local", "much"), "'much' is not a limit"),
        (
            ("--archive", "s3://b/p", "--segment-age", "1h", "--kafka", "localhost:1"),
            "--segment-age is for an embedded log",
        ),
    ],
)
def test_options_that_make_no_sense(options: tuple[str, ...], line: str, tmp_path: Path) -> None:
    done = run("start", "--data", str(tmp_path / "data"), *options)
    assert done.returncode == 64
    assert line in done.stderr


# -- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.rare(place=["directory"])
def test_a_killed_archiver_is_started_again(begin: Callable[..., RunningBroker], place: Place) -> None:
    broker = begin(place)
    for _ in range(2):
        publish(broker, range(20))
        all_archived(broker)
        first = archiver_of(broker)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda old: archiver_of(broker) not in (None, old), "no other archiver is started", first)
    publish(broker, range(20, 40))
    all_archived(broker)
    assert log_lines(broker, "archiving fails") == log_lines(broker, "archiving works again") == 2
    assert log_lines(broker, "the archiver process ended") == 2
    assert archive_item(broker)["failures"] == 2
    require_same(broker.data, place)
    assert broker.stop() == 0


def test_the_archiver_ends_with_a_broker_that_is_killed(begin: Callable[..., RunningBroker], place: Place) -> None:
    broker = begin(place)
    publish(broker, range(20))
    all_archived(broker)
    child = archiver_of(broker)
    assert child is not None
    broker.kill()
    until(lambda: not Path(f"/proc/{child}").exists(), "the archiver lives on without its broker")


def test_a_store_that_is_away_and_comes_back(begin: Callable[..., RunningBroker], s3: S3Server, tmp_path: Path) -> None:
    with S3Server(tmp_path / "own") as own:
        place = Place(own.bucket("history"), own.environment, own.files("history"))
        broker = begin(place)
        publish(broker, range(20))
        all_archived(broker)
        own.stop()
        publish(broker, range(20, 40))
        until(lambda: archive_item(broker)["failures"] >= 2, "the store is away, and nothing is told")
        item = archive_item(broker)
        assert "the store does not answer" in item["error"]
        assert item["lag_records"] > 0
        assert "Archiving fails: s3://history" in run("status", REWINDMQ_URL=broker.http_url).stdout
        publish(broker, range(40, 60))  # nobody waits
        own.start()
        all_archived(broker)
        assert log_lines(broker, "archiving fails") == log_lines(broker, "archiving works again") == 1
        require_same(broker.data, place)


def test_a_login_that_is_refused(begin: Callable[..., RunningBroker], s3: S3Server) -> None:
    wrong = s3.environment | {"AWS_SECRET_ACCESS_KEY": "a-wrong-secret"}
    broker = begin(Place(s3.bucket("refused"), wrong, s3.files("refused")))
    publish(broker, range(5))
    until(lambda: archive_item(broker)["error"], "the login is refused, and nothing is told")
    item = archive_item(broker)
    assert "refuses (HTTP 403 Forbidden, SignatureDoesNotMatch): check bucket and login" in item["error"]
    assert item["lag_records"] is None
    shown = run("status", REWINDMQ_URL=broker.http_url).stdout
    assert "Archived until: (not known yet)\n" in shown
    for text in (shown, "".join(broker.errors)):
        assert SECRET_KEY not in text
        assert "a-wrong-secret" not in text
    assert archive_of(broker.data) is None


def test_the_archive_of_another_history(begin: Callable[..., RunningBroker], tmp_path: Path) -> None:
    """The broker runs, and says it: messages go on."""
    place = Place(str(tmp_path / "archive"), {}, tmp_path / "archive")
    first = begin(place)
    publish(first, range(5))
    all_archived(first)
    other = begin(place)
    publish(other, range(5))
    until(lambda: archive_item(other)["error"], "the archive is another broker's, and nothing is told")
    assert "the archive of another history" in archive_item(other)["error"]
    assert log_lines(other, "archiving fails") == 1


def test_a_full_archive(tmp_path: Path) -> None:
    class Within(RunningBroker):
        """A broker that sees the small disk, and has its data elsewhere."""

        def command(self, command: list[str]) -> list[str]:
            return disk.command(command)

    with SmallDisk(tmp_path / "disk", megabytes=8) as disk:
        broker = Within(tmp_path / "data", "--archive", str(disk.mount_point / "archive"), *SOON)
        publish(broker, range(20))
        all_archived(broker)
        disk.fill()
        publish(broker, range(20, 300))
        until(lambda: archive_item(broker)["error"], "the archive is full, and nothing is told")
        assert "the archive cannot be written (No space left on device)" in archive_item(broker)["error"]
        disk.empty()
        all_archived(broker)
        assert log_lines(broker, "archiving fails") == log_lines(broker, "archiving works again") == 1
        assert broker.stop() == 0
        copy = shutil.copytree(disk.path / "archive", tmp_path / "copy")
    require_same(tmp_path / "data", Place(str(copy), {}, copy))


@pytest.mark.rare(place=["directory"])
def test_another_archiver_at_the_same_time(begin: Callable[..., RunningBroker], place: Place) -> None:
    broker = begin(place)
    ended = threading.Event()
    codes: list[int] = []

    def by_hand() -> None:
        command = [str(COMMAND), "archive", "-q", "--data", str(broker.data), "--to", place.url]
        environment = {"PATH": "/usr/bin", **place.environment}
        while not ended.is_set():
            codes.append(start_process(command, env=environment, stdout=subprocess.DEVNULL).wait(60))

    thread = threading.Thread(target=by_hand)
    thread.start()
    try:
        for number in range(8):
            publish(broker, range(10 * number, 10 * number + 10))
            time.sleep(0.7)
        all_archived(broker)
    finally:
        ended.set()
        thread.join()
    assert codes
    assert set(codes) == {0}
    assert archive_item(broker)["failures"] == 0, "".join(broker.errors)
    require_same(broker.data, place)


@pytest.mark.rare(place=["directory"])
def test_kills_of_both_lose_nothing_and_double_nothing(
    begin: Callable[..., RunningBroker], place: Place, tmp_path: Path
) -> None:
    """The recovered directory has each confirmed message once, and its closed segments are the broker's own."""
    chance = random.Random(11)
    data, confirmed = tmp_path / "data", 0
    for _ in range(rounds(4, 2)):
        broker = begin(place, data)
        deadline = time.monotonic() + 1.5 + 2 * chance.random()
        while time.monotonic() < deadline:
            publish(broker, range(confirmed, confirmed + 10))
            confirmed += 10
            if chance.random() < 0.2 and (child := archiver_of(broker)) is not None:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.05)
        broker.kill()
        require_same(data, place) if (place.files / "archive.json").exists() else None
    broker = begin(place, data)
    all_archived(broker)
    broker.stop()
    require_same(data, place)
    rolled = run("archive", "-q", "--roll", "--data", str(data), "--to", place.url, **place.environment)
    assert rolled.returncode == 0, rolled.stderr
    again = tmp_path / "again"
    done = run("recover", "-q", "--archive", place.url, "--data", str(again), **place.environment)
    assert done.returncode == 0, done.stderr
    for directory in sorted((data / "log").glob("*-*")):
        for path in segment_files(directory)[:-1]:
            assert (again / "log" / directory.name / path.name).read_bytes() == path.read_bytes()
    recovered = begin(place, again)
    assert [int(body) for body in bodies(recovered)] == list(range(confirmed))


def bodies(broker: RunningBroker) -> Iterator[bytes]:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url + "?heartbeat=0")) as connection:
        channel = connection.channel()
        while (found := channel.basic_get("orders", auto_ack=True))[0] is not None:
            yield found[2]


@pytest.mark.rare(place=["s3"])
def test_what_is_archived_leaves_the_disk(begin: Callable[..., RunningBroker], place: Place, tmp_path: Path) -> None:
    """With --keep-local, also where archiver and broker are killed. Queues stay as they are."""
    data, confirmed = tmp_path / "data", 0
    options = (*SOON, "--keep-local", "300kB")

    def starts() -> list[int]:
        return [base_offset_of(segment_files(data / "log" / f"queues-{number}")[0]) for number in range(2)]

    for _ in range(rounds(4, 2)):
        broker = begin(place, data, *options)
        before, deadline = max(starts()), time.monotonic() + 120
        while max(starts()) == before:
            assert time.monotonic() < deadline, f"nothing is removed: {archive_item(broker)}"
            publish(broker, range(confirmed, confirmed + 5))
            confirmed += 5
            time.sleep(0.3)
        if (child := archiver_of(broker)) is not None:
            os.kill(child, signal.SIGKILL)
        broker.kill()
    broker = begin(place, data, *options)
    all_archived(broker)
    require_same(data, place)
    assert archive_item(broker)["url"] == archive_of(data)
    assert max(starts()) > 12
    shown = run("rewind", "orders", "--offset", "12", "--formatter", "json", REWINDMQ_URL=broker.http_url)
    assert shown.returncode == 0, shown.stderr  # below the local start: out of the archive
    assert [int(body) for body in bodies(broker)] == list(range(confirmed))
    assert broker.stop() == 0


def test_no_broker_without_an_archive_loads_obstore(broker: RunningBroker) -> None:
    assert "obstore" not in Path(f"/proc/{broker.process.pid}/maps").read_text()


def test_a_broker_with_an_archive_leaves_obstore_to_its_archiver(
    begin: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    broker = begin(Place(str(tmp_path / "archive"), {}, tmp_path / "archive"))
    child = archiver_of(broker)
    assert "obstore" in Path(f"/proc/{child}/maps").read_text()
    assert "obstore" not in Path(f"/proc/{broker.process.pid}/maps").read_text()
