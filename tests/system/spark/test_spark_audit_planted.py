"""Every kind of corruption, planted: in the log's bytes, in its events (with the hash chain made anew), in RocksDB.
Each is found and located; or said to be found by nothing but seals, which find them all."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pyspark.sql import SparkSession

from rewindmq.engine.cli.main import run
from rewindmq.engine.log.embedded.index import ENTRY, HEADER, decode_entry, index_path
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.projections.store import keys, rocks
from rewindmq.schemas.events import Acked, Published, Purged, Tick
from rewindmq.schemas.values import Route
from rewindmq.spark_replay.audit.audit import audit
from tests.support.rocks import flipped, stored
from tests.support.spark.forging import (
    DEAD,
    WORK,
    Forger,
    SoundLog,
    audited,
    bad,
    changed,
    dropped,
    forge,
    instead,
    letter,
    put_in,
    swapped,
    with_state,
    write_sound,
)

Expected = tuple[str, str, int | None, str | None, int | None]  # check, partition, offset, queue, message


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> SoundLog:
    """Sealed, and with the RocksDB of a broker. The keys lie beside it."""
    data = tmp_path_factory.mktemp("sound") / "data"
    sound = write_sound(data)
    with_state(data)
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (data.parent / "seal.key").write_bytes(private)
    (data.parent / "seal.pub").write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    assert run(["seal", "--data", str(data), "--key", str(data.parent / "seal.key")]) == 0
    return sound


def seals_hold(sound: SoundLog, data: Path) -> bool:
    public = sound.data.parent / "seal.pub"
    return run(["verify_seals", "--data", str(data), "--public-key", str(public)]) == 0


def test_the_history_is_sound_before(sound: SoundLog) -> None:
    findings = audited(sound.data)
    assert [each for each in findings if not each.ok] == []
    assert "2 letters sent and arrived" in {each.detail for each in findings if each.check == "arrivals"}
    assert seals_hold(sound, sound.data)


# -- events of a log that is written anew, so that its chain holds -------------------------------------------------


def publish(queue: str) -> Published:
    return Published(Route("/", "", queue, (queue,)), b"\x10\x00\x02", persistent=True, body=b"new", body_size=3)


def at_home(
    t: SoundLog, offset: int | None, queue: str | None = None, message: int | None = None, check: str = "claims"
) -> Expected:
    return check, f"queues-{t.home}", offset, queue, message


# What is forged, in which partition, what the audit finds; first with the broker's claims as they were, then with
# claims made anew, too. The state directory is gone in both. None: only seals tell.
FORGERIES: dict[str, Callable[[SoundLog], tuple[int, Forger, Expected | None, Expected | None]]] = {
    "an ack is dropped": lambda t: (t.home, dropped(t.acked_at), at_home(t, t.sent + 1), None),
    "an ack is made a tick": lambda t: (t.home, instead(t.acked_at, Tick()), at_home(t, t.sent + 2), None),
    "an ack is made a purge": lambda t: (t.home, instead(t.acked_at, Purged("/", WORK)), at_home(t, t.sent + 2), None),
    "a publish is dropped": lambda t: (
        t.home,
        dropped(t.first),
        at_home(t, t.first + 2),
        at_home(t, None, None, None, "arrivals"),
    ),
    "a publish and its ack are made ticks": lambda t: (
        t.home,
        lambda records: instead(t.acked_at, Tick())(instead(t.first, Tick())(records)),
        at_home(t, t.first + 3),
        None,
    ),
    "a publish is put in": lambda t: (t.home, put_in(t.first, publish(WORK)), at_home(t, t.first + 4), None),
    "a publish is put in the place of a tick": lambda t: (
        t.away,
        instead(t.empty, publish(DEAD)),
        ("claims", f"queues-{t.away}", t.left + 2, None, None),
        None,
    ),
    "two publishes change places": lambda t: (t.home, swapped(t.first), at_home(t, t.dead + 2), None),
    "two publishes of one size change places": lambda t: (t.away, swapped(t.left), None, None),
    "a body is changed": lambda t: (t.away, changed(t.left, body=b"stayed?"), None, None),
    "who asked is changed": lambda t: (
        t.home,
        lambda records: [
            (at, who if n != t.acked_at else type(who)("eve", who.session), event)
            for n, (at, who, event) in enumerate(records)
        ],
        None,
        None,
    ),
    "a size is changed": lambda t: (
        t.away,
        changed(t.left, body=b"longer", body_size=6),
        ("claims", f"queues-{t.away}", t.left + 2, None, None),
        None,
    ),
    "an ack of what nobody held is put in for a tick": lambda t: (
        t.away,
        instead(t.empty, Acked("/", DEAD, 9, ((t.came, t.came),))),
        None,
        None,
    ),
    "the death of a message is made an ack": lambda t: (
        t.home,
        instead(t.sent, Acked("/", WORK, 1, ((t.dead, t.dead),))),
        at_home(t, t.sent + 2),
        ("arrivals", f"queues-{t.away}", t.came, f"//{DEAD}", t.came),
    ),
    "a dead letter that arrived is taken away": lambda t: (
        t.away,
        instead(t.came, Tick()),
        ("claims", f"queues-{t.away}", t.left + 2, None, None),
        ("arrivals", f"queues-{t.home}", t.sent, f"//{WORK}", t.dead),
    ),
    "a dead letter that nobody sent is put in for a tick": lambda t: (
        t.away,
        instead(t.empty, letter(1, t.first, 2)),
        ("claims", f"queues-{t.away}", t.left + 2, None, None),
        ("arrivals", f"queues-{t.away}", t.empty, f"//{DEAD}", t.empty),
    ),
    "a dead letter is that of another message": lambda t: (
        t.away,
        instead(t.came, letter(1, t.first, 1)),
        None,
        ("arrivals", f"queues-{t.away}", t.came, f"//{DEAD}", t.came),
    ),
}


@pytest.mark.parametrize("claims_too", [False, True], ids=["claims kept", "claims forged"])
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_log_with_a_chain_that_holds_is_convicted(
    sound: SoundLog, tmp_path: Path, name: str, claims_too: bool
) -> None:
    number, forger, kept, forged = FORGERIES[name](sound)
    expected = forged if claims_too else kept
    data = tmp_path / "data"
    forge(sound.data, data, number, forger, claims_too)
    shutil.rmtree(data / "state")
    found = bad(audited(data))
    if expected is None and name != "a dead letter is that of another message":
        assert found == []
    elif expected is not None:
        places = [(each.check, each.partition, each.offset, each.queue, each.message_id) for each in found]
        if expected[2] is None:  # it shows at several places; which check is what matters
            assert expected[0] in {place[0] for place in places}
        else:
            assert expected in places, places
    seals = list((sound.data / "log").rglob("_*.seal"))
    assert len(seals) >= 3
    for path in seals:
        shutil.copy(path, data / path.relative_to(sound.data))
    assert not seals_hold(sound, data)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("a body is changed", lambda t: (f"queues-{t.away}", f"//{DEAD}", t.left)),
        ("two publishes of one size change places", lambda t: (f"queues-{t.away}", f"//{DEAD}", t.left)),
        ("a publish and its ack are made ticks", lambda t: (f"queues-{t.home}", f"//{WORK}", None)),
    ],
)
def test_what_only_seals_find_rocksdb_contradicts_where_it_was_left(
    sound: SoundLog, tmp_path: Path, name: str, place: Callable[[SoundLog], tuple[str, str, int | None]]
) -> None:
    number, forger, _, _ = FORGERIES[name](sound)
    forge(sound.data, tmp_path / "data", number, forger, claims_too=True)
    found = [each for each in audited(tmp_path / "data") if not each.ok]
    assert {each.check for each in found} == {"store"}
    assert place(sound) in [(each.partition, each.queue, each.message_id) for each in found]


def test_a_forged_dead_letter_is_found_by_the_whole_audit(spark: SparkSession, sound: SoundLog, tmp_path: Path) -> None:
    number, forger, _, expected = FORGERIES["a dead letter that arrived is taken away"](sound)
    forge(sound.data, tmp_path / "data", number, forger, claims_too=True)
    shutil.rmtree(tmp_path / "data" / "state")
    found = [each for each in audit(spark, str(tmp_path / "data")) if not each.ok]
    assert [(each.check, each.partition, each.offset, each.queue, each.message_id) for each in found] == [expected]
    assert found[0].detail == f"dead letter 1 was forwarded, and never arrived in //{DEAD}"


# -- bytes of the log ------------------------------------------------------------------------------------------------


def blocks(segment: Path) -> list[tuple[int, int, int]]:
    """(position, end, first offset) of each block."""
    content = index_path(segment).read_bytes()
    entries = range(HEADER.size, len(content) - ENTRY.size + 1, ENTRY.size)
    found = [decode_entry(content[at : at + ENTRY.size]) for at in entries]
    return [(entry.position, entry.end, entry.first_offset) for entry in found]


def flip(content: bytearray, found: list[tuple[int, int, int]]) -> int:
    begin, end, first = found[2]
    content[(begin + end) // 2] ^= 4
    return first


def drop(content: bytearray, found: list[tuple[int, int, int]]) -> int:
    begin, end, first = found[2]
    del content[begin:end]
    return first


def swap(content: bytearray, found: list[tuple[int, int, int]]) -> int:
    (begin, middle, first), (_, end, _) = found[2:4]
    content[begin:end] = content[middle:end] + content[begin:middle]
    return first


def put_in_again(content: bytearray, found: list[tuple[int, int, int]]) -> int:
    begin, end, _ = found[2]
    content[end:end] = content[begin:end]
    return found[3][2]


@pytest.mark.parametrize("damage", [flip, drop, swap, put_in_again], ids=lambda damage: damage.__name__)
def test_changed_bytes_are_found_by_the_chain_at_their_offset(
    busy: Path, tmp_path: Path, damage: Callable[[bytearray, list[tuple[int, int, int]]], int]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(busy, data)
    segment = segment_files(data / "log" / "queues-0")[0]
    content = bytearray(segment.read_bytes())
    offset = damage(content, blocks(segment))
    segment.write_bytes(bytes(content))
    found = [each for each in audited(data) if not each.ok]
    assert [(each.check, each.partition, each.offset, each.corrupt) for each in found] == [
        ("chain", "queues-0", offset, True)
    ]
    assert segment.name in found[0].detail


# -- RocksDB ---------------------------------------------------------------------------------------------------------


PLANTED_IN_ROCKSDB = (
    "a body",
    "a body is gone",
    "a body too many",
    "a queue",
    "a queue is gone",
    "a chunk",
    "the partition's head",
    "the offset",
)


@pytest.mark.parametrize("what", PLANTED_IN_ROCKSDB)
def test_a_changed_value_of_rocksdb_is_found_with_queue_and_message(sound: SoundLog, tmp_path: Path, what: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(sound.data, data)
    partition = EmbeddedLogReader(data).queues[sound.away]
    prefix, queue_id = keys.partition_prefix(partition.name), 1
    body = keys.message(prefix, queue_id, sound.left)
    db = rocks.open_database(data / "state")
    key, value, queue, message = {
        "a body": (body, flipped(stored(db, body)), f"//{DEAD}", sound.left),
        "a body is gone": (body, None, f"//{DEAD}", sound.left),
        "a body too many": (keys.message(prefix, queue_id, 77), b"x", f"//{DEAD}", 77),
        "a queue": (keys.queue(prefix, queue_id), flipped(stored(db, keys.queue(prefix, queue_id))), f"//{DEAD}", None),
        "a queue is gone": (keys.queue(prefix, queue_id), None, f"//{DEAD}", None),
        "a chunk": (
            keys.chunk(prefix, queue_id, 0),
            flipped(stored(db, keys.chunk(prefix, queue_id, 0))),
            f"//{DEAD}",
            None,
        ),
        "the partition's head": (keys.head(prefix), flipped(stored(db, keys.head(prefix))), None, None),
        "the offset": (keys.applied(prefix), (sound.came).to_bytes(8, "big"), None, None),
    }[what]
    if value is None:
        del db[key]
    else:
        db[key] = value
    db.close()
    found = [each for each in audited(data) if not each.ok]
    assert {(each.check, each.partition) for each in found} == {("store", partition.name)}
    assert (queue, message) in {(each.queue, each.message_id) for each in found}
    offset = sound.came if what == "the offset" else partition.next_offset
    assert {each.offset for each in found} == {offset}
