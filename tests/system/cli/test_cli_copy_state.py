"""`rewindmq copy_state`: the data directory appears whole, or not at all, and one line says why.

From a node on Kafka: tests/system/kafka/test_kafka_copy_state.py. Here who answers is a server that says what it is
told to.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rewindmq.engine.cluster.store_copy import StateCopy
from rewindmq.projections.store import keys
from rewindmq.projections.store.store import StateStore
from tests.support.commands import Cli, require_failure
from tests.support.forked import run


@contextmanager
def saying(answer: bytes, length: int) -> Iterator[str]:
    """A server's URL. `length`: how many bytes it says that it has."""

    class Saying(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/state"
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Saying) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return copied(tmp_path_factory.mktemp("north"), keys.FORMAT_VERSION)


def copied(data: Path, version: bytes) -> bytes:
    (data / "kafka").write_text('{"format": 1, "history": "a history"}\n')
    store = StateStore.open(data / "state")
    store._db.put(keys.FORMAT, version)
    copy = StateCopy(data, "north")
    copy.make(store)
    found = b"".join(copy.pieces())
    copy.close()
    store.close()
    return found


def nothing_left(directory: Path, *but: str) -> None:
    assert sorted(path.name for path in directory.iterdir()) == sorted(but)


@pytest.mark.parametrize("there", [False, True])
def test_the_data_directory_of_a_new_node(tar: bytes, tmp_path: Path, there: bool) -> None:
    data = tmp_path / "of" / "south"
    if there:
        data.mkdir(parents=True)
    with saying(tar, len(tar)) as url:
        done = run("copy_state", "--data", str(data), "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first == f"Copying the state of {url} to {data} ..."
    assert last.startswith("Copied the state of node north: ")
    nothing_left(data.parent, "south")
    nothing_left(data, "kafka", "state")
    StateStore.open(data / "state").close()


def test_what_breaks_off_leaves_nothing(tar: bytes, tmp_path: Path) -> None:
    with saying(tar[: len(tar) // 2], len(tar)) as url:
        done = run("copy_state", "-q", "--data", str(tmp_path / "south"), "--url", url)
    require_failure(done, 69, f"Error: {url} closed the connection in the middle: ")
    nothing_left(tmp_path)


def test_what_is_damaged_leaves_nothing(tar: bytes, tmp_path: Path) -> None:
    at = tar.index(b"a history")
    with saying(tar[:at] + b"A" + tar[at + 1 :], len(tar)) as url:
        done = run("copy_state", "-q", "--data", str(tmp_path / "south"), "--url", url)
    require_failure(
        done, 65, "Error: the received copy is incomplete or damaged: kafka is missing, or differs from the manifest"
    )
    nothing_left(tmp_path)


def test_what_another_version_wrote_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    newer = copied(tmp_path / "north", b"3")
    with saying(newer, len(newer)) as url:
        done = run("copy_state", "-q", "--data", str(tmp_path / "south"), "--url", url)
    require_failure(done, 65, "Error: the received copy cannot be opened: ")
    assert "state of format b'3', this version reads b'1'" in done.stderr
    nothing_left(tmp_path, "north")


def test_a_directory_that_is_in_use_is_left_alone(tar: bytes, tmp_path: Path) -> None:
    (tmp_path / "south").mkdir()
    (tmp_path / "south" / "mine").write_text("mine")
    with saying(tar, len(tar)) as url:
        done = run("copy_state", "-q", "--data", str(tmp_path / "south"), "--url", url)
        require_failure(done, 78, f"Error: {tmp_path / 'south'} is not empty: give an empty directory")
        done = run("copy_state", "-q", "--data", str(tmp_path / "south" / "mine"), "--url", url)
        require_failure(done, 64, "Error (argument validation): Invalid value for '--data'")
        done = run("copy_state", "-q", "--data", str(tmp_path / "south" / "mine" / "south"), "--url", url)
        require_failure(done, 69, f"Error: {tmp_path / 'south' / 'mine'}: ")
    nothing_left(tmp_path / "south", "mine")


def test_a_broker_that_has_its_log_with_it_refuses(cli: Cli, tmp_path: Path) -> None:
    done = cli("copy_state", "-q", "--data", str(tmp_path / "south"))
    require_failure(
        done, 65, "Error: the log of this broker is in its data directory, and its state is of no use without it"
    )
    require_failure(cli("copy_state"), 64, "Error (argument validation): Missing option '--data'")
    nothing_left(tmp_path)
