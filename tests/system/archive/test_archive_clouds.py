"""The archive on Google Cloud Storage and on Azure Blob Storage: servers of both on loopback."""

import json
import subprocess
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.objects import MissingObject, Objects, open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import segment_files
from tests.support.archive_commands import PARTITIONS, Place, archive, require_whole, status, verify
from tests.support.archiving_brokers import all_archived, archive_item, log_lines, publish, require_same
from tests.support.clouds import cloud
from tests.support.commands import COMMAND, require_failure
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.running import RunningBroker, start_process
from tests.support.store_server import StoreServer

__all__ = ["cloud"]
pytestmark = pytest.mark.timeout(900)  # the first test may have to build a server


@pytest.fixture
def place(cloud: StoreServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """A place in a bucket of its own. This process has its login."""
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    return Place(f"{cloud.bucket(f'b-{uuid.uuid4().hex[:8]}')}/some/prefix", cloud.environment, tmp_path / "no-files")


@pytest.fixture
def objects(place: Place) -> Objects:
    return open_objects(place.url)


# -- one object ----------------------------------------------------------------------------------------------------


def test_an_object_is_created_once_read_by_ranges_and_listed(objects: Objects, tmp_path: Path) -> None:
    assert objects.create("p/b", b"0123456789")
    assert not objects.create("p/b", b"another one")
    assert objects.get("p/b") == b"0123456789"
    assert objects.size("p/b") == 10
    ranges = {(3, 6): b"345", (8, 20): b"89", (10, 20): b"", (50, 60): b"", (4, 4): b""}
    assert {each: objects.get_range("p/b", *each) for each in ranges} == ranges
    (tmp_path / "large").write_bytes(bytes(range(256)) * 40_000)
    with (tmp_path / "large").open("rb") as file:
        assert objects.create("p/d", file)
    assert b"".join(objects.pieces("p/d")) == bytes(range(256)) * 40_000
    for key in ("p/a", "p/c", "pp/e"):
        assert objects.create(key, b"")
    assert objects.get("p/a") == b"".join(objects.pieces("p/a")) == b""
    assert list(objects.list("p")) == ["p/a", "p/b", "p/c", "p/d"]
    assert list(objects.list("p", after="p/b")) == ["p/c", "p/d"]
    assert list(objects.list("nothing")) == []
    for _ in range(2):
        objects.delete("p/b")
    assert objects.size("p/b") is None
    for ask in (objects.get, lambda key: objects.get_range(key, 0, 5), lambda key: list(objects.pieces(key))):
        with pytest.raises(MissingObject, match="p/b: there is no such object"):
            ask("p/b")


def test_of_many_at_once_one_creates_it(objects: Objects) -> None:
    created: list[int] = []

    def create(number: int) -> None:
        if objects.create("one", b"%d" % number * 10_000):
            created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = created
    assert objects.get("one") == b"%d" % winner * 10_000


def test_a_bucket_that_is_not_there(objects: Objects, cloud: StoreServer) -> None:
    nowhere = open_objects(f"{cloud.scheme}://nowhere/x")
    for ask in (nowhere.get, lambda key: nowhere.create(key, b""), lambda key: list(nowhere.list(key))):
        with pytest.raises(NoAnswer, match=r"the store refuses \(HTTP 404 Not Found, .*\): check bucket and login"):
            ask("archive.json")


# -- a whole archive -----------------------------------------------------------------------------------------------


def test_several_archivers_at_once_make_one_archive_and_it_comes_back(
    data: Path, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [str(COMMAND), "archive", "--data", str(data), "--to", place.url]
    how = {"env": {"PATH": "/usr/bin", **place.environment}, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    killed, *others = [start_process(command, **how) for _ in range(3)]
    killed.kill()
    assert [process.wait(120) for process in others] == [0, 0]
    assert [row["segments"] for row in archive(data, place)] == [0, 0]
    require_whole(data, place, monkeypatch)
    assert [status(data, place)[name]["lag"] for name in PARTITIONS] == [0, 0]

    archived, stored = ArchivedLog(place.url).queues[0], EmbeddedLogReader(data).queues[0]
    for bounds in ((2_345, 2_355), (0, None)):
        assert [each.chain for each in archived.read(*bounds)] == [each.chain for each in stored.read(*bounds)]
    recovered = tmp_path / "recovered"
    done = run("recover", "-q", "--archive", place.url, "--data", str(recovered), **place.environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for name in PARTITIONS:
        ours, theirs = segment_files(recovered / "log" / name), segment_files(data / "log" / name)
        assert [path.read_bytes() for path in ours[:-1]] == [path.read_bytes() for path in theirs[:-1]]


def test_an_object_that_is_gone_is_found_and_named(data: Path, place: Place, objects: Objects) -> None:
    archive(data, place)
    gone = next(objects.list("queues-0/segments"))
    objects.delete(gone)
    done = verify(place)
    assert done.returncode == 1
    assert f"{objects.place(gone)}: damaged at byte 0" in done.stderr


def test_a_login_that_is_refused_is_in_no_output(data: Path, cloud: StoreServer, place: Place) -> None:
    for wrong in cloud.wrong_logins:
        environment = cloud.environment | wrong
        secrets = {*cloud.secrets, *wrong.values()} - {"nobody"}
        for command in (("archive", "-q", "--data", str(data), "--to"), ("archive_verify", "-q", "--archive")):
            done = run(*command, place.url, **environment)
            require_failure(done, 69, f"Error: {place.url}/archive.json: the store refuses (HTTP 40")
            assert not [each for each in secrets if each in done.stdout + done.stderr]


def test_a_store_that_goes_away_beside_a_broker_and_comes_back(
    begin: Callable[..., RunningBroker], place: Place, cloud: StoreServer
) -> None:
    broker = begin(place)
    publish(broker, range(20))
    all_archived(broker)
    cloud.stop()
    try:
        publish(broker, range(20, 40))
        until(lambda: archive_item(broker)["failures"] >= 1, "the store is away, and nothing is told")
        item = archive_item(broker)
        assert "the store does not answer" in item["error"]
        lines = Path(f"/proc/{broker.process.pid}/cmdline").read_text() + "".join(broker.errors) + json.dumps(item)
        assert not [each for each in cloud.secrets if each in lines]
    finally:
        cloud.start()
    all_archived(broker)
    assert log_lines(broker, "archiving works again") == 1
    require_same(broker.data, place)
