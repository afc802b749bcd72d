"""Each guarantee that RewindMQ needs of the library that stores its state, as a test of the library.

After kill -9: tests/system/durability/test_state_library_killed.py. On a full disk:
tests/system/durability/test_durability_no_room.py.
"""

import itertools
import random
import re
import resource
import threading
from pathlib import Path

import pytest

from rewindmq.engine.rewind import id_index_process
from rewindmq.projections.store import store
from rewindmq.projections.store.rocks import StoreError
from tests.support.state_library import LIBRARIES, Library, everything

MB = 1_000_000
PAIRS = [(b"%04d" % number, b"value %d" % number) for number in range(1_000)]


@pytest.fixture(params=LIBRARIES, ids=lambda library: type(library).__name__)
def library(request: pytest.FixtureRequest) -> Library:
    found: Library = request.param
    return found


# --- keys and values --------------------------------------------------------------------------------------------------


def test_keys_are_in_the_order_of_their_bytes(library: Library, tmp_path: Path) -> None:
    """Bytes without a sign, a prefix before what it begins. Queues are read in the order of their message ids."""
    chars = (b"\x00", b"\x01", b"a", b"\x7f", b"\x80", b"\xff")
    keys = [b"".join(key) for length in (1, 2, 3) for key in itertools.product(chars, repeat=length)]
    keys = [key for key in keys if not key.startswith(b"\xff")]  # none of ours does
    random.Random(1).shuffle(keys)
    database = library.open(tmp_path / "state")
    for first in range(0, len(keys), 7):
        database.write(library.batch([(key, key) for key in keys[first : first + 7]]))
    assert everything(database) == [(key, key) for key in sorted(keys)]
    database.flush(True)
    assert everything(database) == [(key, key) for key in sorted(keys)]
    database.close()


def test_a_value_is_the_bytes_that_were_written(library: Library, tmp_path: Path) -> None:
    """Also an empty one, which differs from none, and one that is larger than a memtable."""
    values = {b"empty": b"", b"zeros": bytes(100), b"large": random.Random(1).randbytes(10 * MB)}
    database = library.open(tmp_path / "state")
    for key, value in values.items():
        database.put(key, value)
    for _ in range(2):
        assert {key: database.get(key) for key in values} == values
        assert database.get(b"missing") is None
        database.close()
        database = library.open(tmp_path / "state")
    database.close()


def test_a_scan_has_the_keys_with_a_prefix_and_begins_anywhere(library: Library, tmp_path: Path) -> None:
    database = library.open(tmp_path / "state")
    keys = [b"a", b"a\xff", b"a\xff\xff", b"a\xff\xff\x01", b"b", b"b1", b"b2", b"b2x", b"b3", b"c"]
    database.write(library.batch([(key, b"") for key in keys]))
    for flushed in (False, True):
        if flushed:
            database.flush(True)
        for prefix in (b"a", b"a\xff\xff\x01", b"b", b"b2", b"d"):
            assert [key for key, _ in database.scan(prefix)] == [key for key in keys if key.startswith(prefix)]
        assert [key for key, _ in database.scan(b"b", b"b2")] == [b"b2", b"b2x", b"b3"]
        assert [key for key, _ in database.scan(b"b", b"b2y")] == [b"b3"]
    database.close()


# --- batches ----------------------------------------------------------------------------------------------------------


def test_the_changes_of_a_batch_count_in_their_order(library: Library, tmp_path: Path) -> None:
    """A range is deleted and written again in one batch (projections/store/projector.py)."""
    database = library.open(tmp_path / "state")
    database.write(library.batch([(b"k%d" % number, b"old") for number in range(6)]))
    database.write(
        library.batch(
            [
                (b"k1", b"gone"),
                (b"k1", b"k4", None),  # k4 stays: the end is exclusive
                (b"k2", b"new"),
                (b"k5", b"new"),
                (b"k5",),
                (b"never there",),
                (b"k9", b"k9", None),
            ]
        )
    )
    for _ in range(2):
        assert everything(database) == [(b"k0", b"old"), (b"k2", b"new"), (b"k4", b"old")]
        database.flush(True)
    database.close()


def test_an_iterator_sees_the_moment_at_which_it_began(library: Library, tmp_path: Path) -> None:
    database = library.open(tmp_path / "state")
    database.write(library.batch(PAIRS))
    reading = database.scan(b"0")
    found = [next(reading)]
    database.write(library.batch([(b"0", b"1", None), (b"0500", b"other"), (b"0500x", b"more")]))
    database.flush(True)
    assert [*found, *reading] == PAIRS
    assert [key for key, _ in database.scan(b"0")] == [b"0500", b"0500x"]
    database.close()


def test_a_reader_in_another_thread_sees_whole_batches(library: Library, tmp_path: Path) -> None:
    database = library.open(tmp_path / "state")
    database.write(library.batch([(b"a", b"0"), (b"b", b"0")]))
    torn, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            values = {value for _, value in everything(database)}
            if len(values) != 1:
                torn.append(values)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2_000):
        database.write(library.batch([(b"a", b"%d" % number), (b"b", b"%d" % number)]))
    done.set()
    reader.join()
    database.close()
    assert not torn


# --- files ------------------------------------------------------------------------------------------------------------


def test_closing_keeps_everything_though_nothing_is_logged_twice(library: Library, tmp_path: Path) -> None:
    """There is no WAL: the log of events is one."""
    path = tmp_path / "state"
    database = library.open(path)
    database.write(library.batch([(key, value * 100) for key, value in PAIRS]))
    assert sum(file.stat().st_size for file in path.glob("*.log")) == 0
    database.close()
    again = library.open(path)
    assert everything(again) == [(key, value * 100) for key, value in PAIRS]
    again.close()


def test_memory_is_bounded_and_files_are_compressed(library: Library, tmp_path: Path) -> None:
    """Three memtables of 8 MB are all that is in memory; the rest goes into files by itself."""
    path = tmp_path / "state"
    database = library.open(path)
    body = random.Random(1).randbytes(50_000) + bytes(50_000)  # half of it can be compressed
    for number in range(600):
        database.write(library.batch([(b"%04d" % number, body)]))
    database.flush(True)
    size = sum(file.stat().st_size for file in path.glob("*.sst"))
    assert 20 * MB < size < 40 * MB
    database.close()
    for _ in range(3):
        library.open(path).close()
    assert len(list(path.glob("LOG*"))) <= 2


def test_a_checkpoint_is_the_database_at_that_moment(library: Library, tmp_path: Path) -> None:
    database = library.open(tmp_path / "state")
    database.write(library.batch(PAIRS))
    database.flush(True)
    database.checkpoint(tmp_path / "copy")
    database.write(library.batch([(b"0", b"1", None)]))
    database.flush(True)
    names = [file.name for file in (tmp_path / "copy").iterdir() if not file.name.startswith(("LOG", "LOCK"))]
    assert not [name for name in names if not re.fullmatch(library.files, name)]
    with pytest.raises(Exception, match="exist"):
        database.checkpoint(tmp_path / "copy")
    database.close()
    copy = library.open(tmp_path / "copy")
    assert everything(copy) == PAIRS
    copy.close()


def test_a_reader_beside_the_writer_sees_the_files_and_changes_nothing(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "state"
    writer = library.open(path)
    writer.write(library.batch(PAIRS))
    writer.flush(True)
    writer.write(library.batch([(b"0", b"1", None)]))
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    reader = library.read(path)
    assert everything(reader) == PAIRS
    with pytest.raises(Exception, match="read only"):
        reader.put(b"0", b"")
    reader.close()
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == before
    assert everything(writer) == []
    writer.close()


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_told_why(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "state"
    database = library.open(path)
    with pytest.raises(Exception, match="LOCK") as refused:
        library.open(path)
    assert type(refused.value) is Exception  # rocksdict knows no narrower class, and handlers expect that
    assert "in use by another process" in store._why(path, refused.value)
    assert id_index_process._is_locked(refused.value)
    database.put(b"0", b"")
    database.close()
    library.open(path).close()


def test_damage_is_an_error_and_never_a_missing_key(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "state"
    database = library.open(path)
    values = [(key, random.Random(key).randbytes(1_000)) for key, _ in PAIRS]
    database.write(library.batch(values))
    database.close()
    [file] = path.glob("*.sst")
    with file.open("r+b") as damaged:  # one bit in the middle of the data
        damaged.seek(500_000)
        (byte,) = damaged.read(1)
        damaged.seek(500_000)
        damaged.write(bytes([byte ^ 1]))
    database = library.open(path)
    found: list[tuple[bytes, bytes]] = []
    with pytest.raises(Exception, match="Corruption") as scanned:
        found.extend(database.scan(b"0"))
    assert type(scanned.value) is Exception
    assert found == values[: len(found)]
    assert 0 < len(found) < 1_000
    with pytest.raises(Exception, match="Corruption"):
        database.get(values[len(found)][0])
    assert database.get(values[-1][0]) == values[-1][1]
    database.close()


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_database_without_one_of_its_files_is_not_opened(library: Library, tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "state"
    database = library.open(path)
    database.write(library.batch(PAIRS))
    database.close()
    for file in path.glob(pattern):
        file.unlink()
    with pytest.raises(Exception, match=r"No such file|missing|Corruption") as refused:
        library.read(path)
    assert type(refused.value) is Exception


def test_nothing_is_written_behind_a_write_that_failed(library: Library, tmp_path: Path) -> None:
    """Reading continues, and a database that is opened again has what was in files."""
    database = library.open(tmp_path / "state")
    database.write(library.batch(PAIRS))
    database.flush(True)
    database.write(library.batch([(b"0", b"1", None), (b"1", bytes(100))]))
    database.write(library.batch([(b"2", random.Random(1).randbytes(200_000))]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(Exception, match="File too large"):
            database.flush(True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert database.rocks is not None
    with pytest.raises(StoreError):
        database.write(library.batch([(b"3", b"")]))
    assert database.get(b"1") == bytes(100)
    database.reopen()
    kept = everything(database)
    assert kept == PAIRS, "a prefix of the batches: the later ones had only been in memory"
    database.put(b"3", b"works")
    database.close()


# --- buckets (engine/rewind/id_index.py) ------------------------------------------------------------------------------


def test_buckets_are_apart_are_found_again_and_dropped_whole(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "index"
    assert library.buckets_in(path) == []
    database = library.open_buckets(path)
    for bucket in ("1", "2"):
        database.begin(bucket)
        database.write(bucket, [(b"k" + bucket.encode(), b""), (b"both", bucket.encode())])
        database.flush(bucket)
    assert database.keys("1") == [b"both", b"k1"]
    database.drop("1")
    database.close()
    assert library.buckets_in(path) == ["2"]
    again = library.open_buckets(path)
    assert again.keys("2") == [b"both", b"k2"]
    again.begin("1")
    assert again.keys("1") == []
    again.close()


def test_a_bucket_is_read_backwards_from_any_key(library: Library, tmp_path: Path) -> None:
    database = library.open_buckets(tmp_path / "index")
    database.begin("1")
    database.write("1", [(b"a", b""), (b"b1", b""), (b"b3", b"")])
    for _ in range(2):
        assert list(database.backwards("1", b"b3")) == [b"b3", b"b1", b"a"]
        assert list(database.backwards("1", b"b2")) == [b"b1", b"a"]
        assert list(database.backwards("1", b"\xff")) == [b"b3", b"b1", b"a"]
        assert list(database.backwards("1", b"A")) == []
        database.flush("1")
    database.close()


def test_an_index_that_is_open_elsewhere_is_refused(library: Library, tmp_path: Path) -> None:
    database = library.open_buckets(tmp_path / "index")
    with pytest.raises(Exception, match="lock") as refused:
        library.open_buckets(tmp_path / "index")
    assert type(refused.value) is Exception
    database.close()
    library.open_buckets(tmp_path / "index").close()
