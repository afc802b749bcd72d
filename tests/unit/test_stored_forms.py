"""Every stored form says its version where its reader looks first, and another version is refused with one line.

docs/formats.md lists the forms. Each is made here as a broker or a job makes it."""

import hashlib
import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.cluster.start import state_belongs_to
from rewindmq.engine.cluster.store_copy import StateCopy, receive
from rewindmq.engine.config import Config, VaultPlace
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.keeping.archive import recovery
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.directory_note import archive_of, note_archive
from rewindmq.engine.keeping.archive.identity import read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.pack import KafkaRecord
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.keeping.location import InDirectory, noted_identity
from rewindmq.engine.keeping.seals.in_files import segmented
from rewindmq.engine.keeping.seals.register import Register, opened
from rewindmq.engine.keeping.seals.seal import check_proof, fingerprint, parsed_line, read_copies
from rewindmq.engine.keeping.seals.sealer import prove, seal
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import begin_growing, read_layout
from rewindmq.engine.log.embedded.index import index_path
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.roles import FENCED, FOLLOWER, FOLLOWERS, noted_followers, require_broker, write_note
from rewindmq.engine.log.embedded.root import NOTE, noted_history
from rewindmq.engine.log.embedded.root import write_note as note_history
from rewindmq.engine.log.embedded.segments import container_metadata, segment_files
from rewindmq.engine.log.embedded.steady_time import steady_now
from rewindmq.engine.log.kafka.states import END, _Writing
from rewindmq.engine.partition.queue_counters import QueueCounters, decoded, encoded, gone_record, round_record
from rewindmq.engine.rewind.id_index import IdIndex
from rewindmq.engine.standby.log_copy import MOMENT, Moments
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store import metadata_snapshots
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.store.rocks import open_column_families
from rewindmq.projections.store.snapshots import Snapshots, load
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.topology.fold_image import image_of
from rewindmq.projections.topology.metadata_fold import MetadataFold
from rewindmq.spark_replay.audit.dead_letter_join import LetterRows
from rewindmq.spark_replay.audit.file_format import unpacked
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.ledger_files import Ledgers
from rewindmq.spark_replay.audit.log_bytes import ProvenSegments
from rewindmq.spark_replay.audit.watch import AuditStates, BatchReport, Reports, Watch
from rewindmq.spark_replay.history.incremental import _write_progress, read_progress
from rewindmq.spark_replay.snapshots.external import CUT, read_about, write_about
from tests.support.failpoints import armed
from tests.support.records import START_MS, contents, expected, fill, make_log, record
from tests.support.topic_archiving import archive_stretch

NAME = "queues-0"
KEY = Ed25519PrivateKey.generate()
KEYS = {fingerprint(KEY.public_key()): KEY.public_key()}


@dataclass(frozen=True)
class Form:
    """`make` writes a file of the form, and `read` reads it. `magic`: its first bytes, unless it is JSON or Avro.

    `named`: the file or the object, as the refusal names it; empty: by the file's name."""

    make: Callable[[Path], Path]
    read: Callable[[Path], object] | None
    magic: bytes = b""
    named: str = ""


# -- makers ------------------------------------------------------------------------------------------------------------


def segment(home: Path) -> Path:
    return segment_files(make_log(home, [3, 2]))[0]


def growing(home: Path) -> Path:
    make_log(home, [3])
    begin_growing(home, 4)
    return home / "log" / "growing.json"


def archived(home: Path) -> Path:
    """A log of five records in an archive."""
    log = EmbeddedLog.open(home / "data", 1)
    for partition in (log.metadata, *log.queues):
        fill(partition, range(5))
    log.commit_and_wait()
    log.close()
    close_segments(home / "data")
    Archiver(open_objects(str(home / "archive"), make=True), home / "data").run()
    return home / "archive"


def archived_topic(home: Path) -> Path:
    """Five records of a topic in an archive."""
    records = [KafkaRecord(n, START_MS + n, record(n), b"") for n in range(5)]
    archive_stretch(open_objects(str(home / "archive"), make=True), NAME, records)
    return home / "archive"


def in_archive(make: Callable[[Path], Path], pattern: str) -> Callable[[Path], Path]:
    return lambda home: next(iter(sorted(make(home).glob(pattern))))


def half_recovered(home: Path) -> Path:
    class Killed(BaseException):
        pass

    def killed() -> None:
        raise Killed

    objects = open_objects(str(archived(home)))
    with armed("recovery.before_end", killed), pytest.raises(Killed):
        recovery.recover(objects, home / "new")
    return home / "new" / "log" / "recovery.json"


def noted_archive(home: Path) -> Path:
    make_log(home, [3])
    note_archive(home, "file:///away")
    return home / "log" / "archive.json"


def steady(home: Path) -> Path:
    assert steady_now(home / "keep_local.json", 5, 5, 1.0) is None
    return home / "keep_local.json"


def seal_file(home: Path) -> Path:
    directory = make_log(home, [3, 2])
    for partition in segmented(home):
        list(seal(partition, KEY, 5_000))
    return next(directory.glob("_*.seal"))


def proof(home: Path) -> Path:
    seal_file(home)
    [partition] = [each for each in segmented(home) if each.name == NAME]
    path = home / "proof.json"
    path.write_text(json.dumps(prove(partition, 1)))
    return path


def register(home: Path) -> Path:
    stored = parsed_line(seal_file(home / "data").read_bytes(), "a seal")
    with opened(home / "register", "example.org/orders", KEY, KEYS) as book:
        book.add([stored])
    return home / "register" / "seals.jsonl"


def role(name: str, content: dict[str, Any]) -> Callable[[Path], Path]:
    def make(home: Path) -> Path:
        write_note(home / name, content)
        return home / name

    return make


def moment(home: Path) -> Path:
    moments = Moments(home)
    moments.save({}, None)
    moments.close()
    return home / MOMENT


def topology(home: Path) -> Path:
    image = image_of(MetadataFold())
    return metadata_snapshots.write(Snapshots(home), "metadata-0", image, list(image.pieces()), "")


def snapshot_history(home: Path) -> Path:
    note_history(home, ["ab"])
    return home / NOTE


def node(home: Path) -> Path:
    state_belongs_to(Config(data=home, kafka="nowhere:9092"), "cluster a, topic b")
    return home / "kafka"


def state_manifest(home: Path) -> Path:
    node(home)
    store, copy = StateStore.open(home / "state"), StateCopy(home, "north")
    copy.make(store)
    (home / "copy.tar").write_bytes(b"".join(copy.pieces()))
    copy.close()
    store.close()
    with tarfile.open(home / "copy.tar") as tar:
        stored = tar.extractfile("manifest.json")
        assert stored is not None
        (home / "manifest.json").write_bytes(stored.read())
    return home / "manifest.json"


def read_manifest(path: Path) -> None:
    member, content = tarfile.TarInfo(path.name), path.read_bytes()
    member.size = len(content)
    receive(iter([member.tobuf() + content + bytes(-len(content) % 512 + 1_024)]), path.parent / "received")


def key(home: Path) -> Path:
    return home / KeyStore(home).current("ada")[0]


def current_key(home: Path) -> Path:
    return home / KeyStore(home).current("ada")[0][:42]


def vault(home: Path) -> Path:
    KeyStore(home).use_vault(VaultPlace("http://nowhere", "transit", "token"))
    return home / "vault.json"


def in_file(value: bytes) -> Callable[[Path], Path]:
    def make(home: Path) -> Path:
        (home / "record").write_bytes(value)
        return home / "record"

    return make


def end_of_copied_state(home: Path) -> Path:
    """The last record of a copy, by a producer that keeps what it is given."""
    sent: list[tuple[list[Any], bytes]] = []

    def produced(_: str, value: bytes, key: bytes, __: int) -> None:
        sent.append((json.loads(key), value))
        writing._reported(None, cast(Any, SimpleNamespace(offset=lambda: 0)))

    producer = SimpleNamespace(produce=produced, poll=lambda _: 0, flush=lambda _: 0, purge=lambda: None)
    clients = SimpleNamespace(producer=lambda _: producer)
    writing = _Writing(cast(Any, clients), "rewindmq.states", 0, lambda: False)
    with Snapshots(home).take(Machine(NAME)).open("rb") as file:
        writing.write(0, 0, file)
    (_, number), value = sent[-1]
    assert number == END
    return in_file(value)(home)


def product() -> AuditProduct:
    found = AuditProduct(NAME, LetterRows(NAME, 0))
    found.begin(Machine(NAME))
    return found


def ledger(home: Path) -> Path:
    (home / NAME).mkdir()
    Ledgers(Snapshots(home), NAME).take(product(), [])
    return home / NAME / f"{0:020d}.ledger"


def letters(home: Path) -> Path:
    return ledger(home).with_suffix(".letters")


def audit_state(home: Path) -> Path:
    AuditStates(home, NAME).save(1, product())
    return home / NAME / f"{1:020d}.audit"


def cut(home: Path) -> Path:
    write_about(home, {"every": 10, "begins": {}})
    return home / CUT


def require_same_watch(path: Path) -> None:
    data = path.parent / "data"
    if not data.exists():
        make_log(data, [3])
    Watch._require_same(cast(Watch, SimpleNamespace(location=InDirectory(data), directory=str(path.parent))), path)


def watched(home: Path) -> Path:
    require_same_watch(home / "begins.json")
    return home / "begins.json"


def reports(home: Path) -> Path:
    assert Reports(home / "reports.jsonl").add(BatchReport(0, "now", 0, {}, []))
    return home / "reports.jsonl"


def progress(home: Path) -> Path:
    _write_progress(home, {"runs": 0, "offsets": {}, "queue": None, "kept_as": "parquet", "begins": {}})
    return home / "_progress.json"


def blocks(kind: Callable[..., Unpacked | Unpacked], path: Path) -> None:
    """Read a .blocks as if its manifest named these very bytes."""
    manifest = Manifest.load(open_objects(str(path.parents[2])), NAME)
    stored = replace(manifest.segments[0].blocks, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    kind(manifest.objects, NAME, replace(manifest.segments[0], blocks=stored))


def open_at(directory: Path) -> Objects:
    return open_objects(str(directory))


FORMS = {
    "segment": Form(segment, lambda path: contents(PartitionReader(path.parent).read())),
    "index": Form(lambda home: index_path(segment(home)), None, b"rwmqidx1"),
    "layout": Form(lambda home: make_log(home, [3]).parent / "layout.json", lambda path: read_layout(path.parents[1])),
    "growing": Form(growing, lambda path: read_layout(path.parents[1])),
    "recovery": Form(
        half_recovered, lambda path: recovery.recover(open_at(path.parents[2] / "archive"), path.parents[1])
    ),
    "note of the archive": Form(noted_archive, lambda path: archive_of(path.parents[1])),
    "steady time": Form(steady, lambda path: steady_now(path, 5, 5, 100.0)),
    "seal": Form(seal_file, lambda path: parsed_line(path.read_bytes(), str(path))),
    "copies of seals": Form(seal_file, read_copies),
    "register": Form(register, lambda path: Register(path.parent).seals),
    "proof": Form(proof, lambda path: check_proof(json.loads(path.read_text()), KEYS), named="the proof"),
    "base": Form(
        lambda home: Bases(home).write(Machine(NAME), b"", []), lambda path: Bases(path.parents[1]).open(NAME, 0)
    ),
    "follower": Form(role(FOLLOWER, {"leader": "URL", "instance": "1"}), lambda path: require_broker(path.parent)),
    "fence": Form(role(FENCED, {"promoted": "1"}), lambda path: require_broker(path.parent)),
    "followers": Form(role(FOLLOWERS, {"followers": {"b": "1"}}), lambda path: noted_followers(path.parent)),
    "moment": Form(moment, lambda path: Moments(path.parent), b"rwmqmom1"),
    "snapshot": Form(lambda home: Snapshots(home).take(Machine(NAME)), load),
    "snapshot of the topology": Form(topology, metadata_snapshots.load),
    "history of snapshots": Form(snapshot_history, lambda path: noted_history(path.parent)),
    "history of a node": Form(node, lambda path: noted_identity(path.parent)),
    "copy of a state": Form(state_manifest, read_manifest),
    "key": Form(key, lambda path: KeyStore(path.parent).find("ada"), b"rwmqkey1"),
    "name of a current key": Form(current_key, lambda path: KeyStore(path.parent).find("ada"), b"rwmqkey1"),
    "place of a Vault": Form(vault, lambda path: KeyStore(path.parent).vault()),
    "identity": Form(in_archive(archived, "archive.json"), lambda path: read_identity(open_at(path.parent))),
    "entry": Form(
        in_archive(archived, f"{NAME}/manifest/*.json"), lambda path: Manifest.load(open_at(path.parents[2]), NAME)
    ),
    "archived records": Form(in_archive(archived, f"{NAME}/segments/*.avro"), None),
    "blocks": Form(in_archive(archived, f"{NAME}/segments/*.blocks"), partial(blocks, Unpacked), b"rwmqblk1"),
    "archived records of a topic": Form(in_archive(archived_topic, f"{NAME}/segments/*.avro"), None),
    "blocks of a topic": Form(
        in_archive(archived_topic, f"{NAME}/segments/*.blocks"), partial(blocks, Unpacked), b"rwmqblk1"
    ),
    "counters": Form(
        in_file(encoded("h", QueueCounters("/", "q", 1))), lambda path: decoded(path.read_bytes()), named="counters"
    ),
    "counters, gone": Form(
        in_file(gone_record("h", ("/", "q"), 1)), lambda path: decoded(path.read_bytes()), named="counters"
    ),
    "counters, round": Form(
        in_file(round_record("h", 1, "a", 0)), lambda path: decoded(path.read_bytes()), named="counters"
    ),
    "copy of a snapshot in Kafka": Form(end_of_copied_state, None),
    "own snapshots": Form(cut, lambda path: read_about(path.parent)),
    "proven segments": Form(lambda home: ProvenSegments(home).save(), lambda path: ProvenSegments(path.parent)),
    "ledger": Form(ledger, unpacked, b"RewindMQ audit, format 1\n"),
    "letters": Form(letters, lambda path: Ledgers(Snapshots(path.parents[1]), NAME).letters(0), b"\xff\xff\xff\xff"),
    "state of a watch": Form(audit_state, lambda path: AuditStates(path.parents[1], NAME).before(2), b"RewindMQ audit"),
    "watched history": Form(watched, require_same_watch),
    "reports": Form(reports, Reports),
    "kept history": Form(progress, lambda path: read_progress(path.parent, None)),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_says_its_version_first(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    content = form.make(tmp_path).read_bytes()
    if form.magic:
        assert content.startswith(form.magic)
    elif content.startswith(b"Obj\x01"):
        assert container_metadata(content)[0][b"rewindmq.format"] == b"1"
    else:
        for line in content.splitlines():
            assert next(iter(json.loads(line).items())) == ("format", 1)


def of_version_2(content: bytes, magic: bytes) -> bytes:
    """The same, said to be of version 2."""
    if content.startswith(b"Obj\x01"):  # strings in Avro's form, and in Arrow's
        changed = content.replace(b"rewindmq.format\x021", b"rewindmq.format\x022")
    elif b"rewindmq.format" in content:
        changed = content.replace(b"\1\0\0\0001\0", b"\1\0\0\0002\0")
    elif magic:
        changed = content.replace(b"1", b"2", 1)
    else:
        changed = re.sub(rb'^(\{"format": ?)1', rb"\g<1>2", content)
    assert changed != content
    return changed


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.read is not None])
def test_another_version_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    path = form.make(tmp_path)
    assert form.read is not None
    path.write_bytes(of_version_2(path.read_bytes(), form.magic))
    with pytest.raises(Exception, match=r"format 2, this program reads format 1") as refused:
        form.read(path)
    assert (form.named or path.name) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_index_of_another_version_is_passed_over(tmp_path: Path) -> None:
    """It is derived from the segment."""
    path = FORMS["index"].make(tmp_path)
    path.write_bytes(of_version_2(path.read_bytes(), b"rwmqidx1"))
    assert contents(PartitionReader(path.parent).read()) == expected(5)


def test_the_index_of_ids_says_its_version_and_another_is_refused(tmp_path: Path) -> None:
    IdIndex.open(tmp_path).close()
    rocks, _ = open_column_families(tmp_path, [])
    assert rocks.get(b"format") == b"1"
    rocks.put(b"format", b"2")
    rocks.close()
    del rocks
    with pytest.raises(LogError, match=f"{tmp_path}: format 2, this program reads format 1"):
        IdIndex.open(tmp_path)
