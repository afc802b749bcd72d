"""The state as a tar and back: all of it, nothing else, and what is not whole is not taken."""

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.cluster.store_copy import BadCopy, CopyUnderWay, StateCopy, receive, remove_leftovers
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store import keys
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore

NUMBER = b"queues-0\x00M"
NODE = '{"format": 1, "history": "cluster a, topic b"}\n'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory as a node on Kafka has it, and what does not belong into a copy."""
    data = tmp_path / "data"
    (data / "keys").mkdir(parents=True)
    (data / "keys" / "subject.key").write_bytes(b"SECRET")
    (data / "kafka").write_text(NODE)
    snapshot = Snapshots(data / "snapshots").take(Machine("queues-0"))
    snapshot.with_suffix(".1.part").write_bytes(b"just being written")
    return data


@pytest.fixture
def store(data: Path) -> Iterator[StateStore]:
    store = StateStore.open(data / "state")
    put(store, 0, 400)
    yield store
    store.close()


def put(store: StateStore, first: int, end: int) -> None:
    for number in range(first, end):
        store._db.put(NUMBER + number.to_bytes(8, "big"), number.to_bytes(4, "big") * 500)


def sent(data: Path, store: StateStore) -> bytes:
    copy = StateCopy(data, "north")
    try:
        copy.make(store)
        return b"".join(copy.pieces())
    finally:
        copy.close()


def pieces_of(tar: bytes, size: int = 1_000) -> Iterator[bytes]:
    return (tar[at : at + size] for at in range(0, len(tar), size))


def content(path: Path) -> dict[bytes, bytes]:
    store = StateStore.open(path, read_only=True)
    found = dict(store.scan(NUMBER))
    assert store.get(keys.FORMAT) == keys.FORMAT_VERSION
    store.close()
    return found


@pytest.mark.parametrize("size", [1, 511, 512, 1_000_000])
def test_what_is_received_is_what_was_sent(data: Path, store: StateStore, tmp_path: Path, size: int) -> None:
    node, files = receive(pieces_of(sent(data, store), size), tmp_path / "new")
    assert node == "north"
    laid_down = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path / "new").as_posix() for path in laid_down} == files.keys()
    assert {name.partition("/")[0] for name in files} == {"kafka", "snapshots", "state"}
    assert (tmp_path / "new" / "kafka").read_text() == NODE
    assert Snapshots(tmp_path / "new" / "snapshots").offsets("queues-0") == [0]
    assert len(content(tmp_path / "new" / "state")) == 400
    assert not (data / "copying").exists()


def test_it_is_of_one_moment(data: Path, store: StateStore, tmp_path: Path) -> None:
    """Though RocksDB writes on, and drops files that the copy is still to send."""
    copy = StateCopy(data, "north")
    copy.make(store)
    pieces = copy.pieces()
    first = next(pieces)
    put(store, 200, 900)
    assert store._db.rocks is not None
    store._db.rocks.compact_range(None, None)
    receive(iter([first, *pieces]), tmp_path / "new")
    copy.close()
    assert len(content(tmp_path / "new" / "state")) == 400


def test_one_copy_at_a_time(data: Path, store: StateStore) -> None:
    one, other = StateCopy(data, "north"), StateCopy(data, "north")
    one.make(store)
    with pytest.raises(CopyUnderWay, match="another copy is under way"):
        other.make(store)
    other.close()
    assert len(list(one.pieces())) > 1, "the other one has not taken it away"
    one.close()
    assert sent(data, store)


def test_what_a_crash_left_is_removed(data: Path, store: StateStore) -> None:
    remove_leftovers(data)
    StateCopy(data, "north").make(store)
    remove_leftovers(data)
    assert not (data / "copying").exists()
    assert sent(data, store)


def test_a_snapshot_that_is_deleted_meanwhile_is_left_out(data: Path, store: StateStore, tmp_path: Path) -> None:
    copy = StateCopy(data, "north")
    copy.make(store)
    pieces = copy.pieces()
    first = next(pieces)
    shutil.rmtree(data / "snapshots")
    _, files = receive(iter([first, *pieces]), tmp_path / "new")
    copy.close()
    assert not [name for name in files if name.startswith("snapshots")]


def test_what_is_cut_short_is_not_taken(data: Path, store: StateStore, tmp_path: Path) -> None:
    tar = sent(data, store)
    whole = len(tar) - 2 * tarfile.BLOCKSIZE  # the end of a tar says nothing
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        starts = [member.offset for member in members]
    for end in {0, 1, *starts, *(start + 700 for start in starts), whole - tarfile.BLOCKSIZE}:
        with pytest.raises(BadCopy, match="cut short"):
            receive(pieces_of(tar[:end]), tmp_path / f"new-{end}")


def test_what_has_changed_on_its_way_is_not_taken(data: Path, store: StateStore, tmp_path: Path) -> None:
    tar = sent(data, store)
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        inside = {member.name: member.offset_data + member.size // 2 for member in members if member.size}
    assert len(inside) > 5
    for name, at in inside.items():
        changed = tar[:at] + bytes([tar[at] ^ 1]) + tar[at + 1 :]
        with pytest.raises(BadCopy) as refusal:
            receive(pieces_of(changed), tmp_path / f"new-{at}")
        assert name == "manifest.json" or str(refusal.value) == f"{name} is missing, or differs from the manifest"


def link(name: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../evil"),
        tarfile.TarInfo("/evil"),
        tarfile.TarInfo("state/../../evil"),
        tarfile.TarInfo("log/queues-0/x"),
        tarfile.TarInfo("keys/subject.key"),
        tarfile.TarInfo("state/CURRENT\n"),
        link("kafka", tarfile.SYMTYPE),
        link("state/000001.sst", tarfile.LNKTYPE),
        link("state/CURRENT", tarfile.DIRTYPE),
        link("kafka", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_what_does_not_belong_in_it_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(BadCopy, match="does not belong in a copy"):
        receive(iter([member.tobuf(), bytes(1024)]), tmp_path / "within" / "new")
    assert not list(tmp_path.rglob("*"))


def test_nothing_comes_twice_or_after_the_end(data: Path, store: StateStore, tmp_path: Path) -> None:
    tar = sent(data, store)[: -2 * tarfile.BLOCKSIZE]
    extra = tarfile.TarInfo("kafka").tobuf()
    with pytest.raises(BadCopy, match="'kafka' does not belong in a copy"):
        receive(iter([tar, extra, bytes(1024)]), tmp_path / "after")
    with pytest.raises(BadCopy, match="kafka is in the copy twice"):
        receive(iter([extra, tar, bytes(1024)]), tmp_path / "twice")


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (
            b'{"format": 2, "node": "n", "files": {}}',
            "manifest.json of the copy: format 2, this program reads format 1",
        ),
        (b'{"format": 1, "node": "n", "files": {}}', "the copy has no state"),
        (b'{"format": 1, "node": "n", "files": {"kafka": {}}}', "kafka is missing"),
        (b'{"format": 1, "node": "n", "files": 7}', "not readable"),
        (b"[]", "not readable"),
        (b"{", "not readable"),
        (b"\xff", "not readable"),
    ],
)
def test_manifests_that_are_none(tmp_path: Path, manifest: bytes, reason: str) -> None:
    member = tarfile.TarInfo("manifest.json")
    member.size = len(manifest)
    tar = member.tobuf() + manifest + bytes(-len(manifest) % 512 + 1024)
    with pytest.raises(BadCopy, match=reason):
        receive(iter([tar]), tmp_path)
