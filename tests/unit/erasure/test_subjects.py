"""Keys of subjects and what is encrypted under them (B-15): the files, the nonces, what a client gets without a key."""

import asyncio
import os
import shutil
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rewindmq.engine.erasure import encryption
from rewindmq.engine.erasure.encryption import LOOK_AGAIN_SECONDS, Subjects, why_no_subject_header
from rewindmq.engine.erasure.key_store import MAGIC, KeyStore
from rewindmq.engine.errors import PreconditionFailed, ResourceError
from rewindmq.projections import system_calls
from rewindmq.schemas.amqp.properties import parse
from rewindmq.schemas.amqp.tables import encode, mapping
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Encryption, Route
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import Wire, method, publish
from tests.support.amqp_wire import properties as wire_properties

ROUTE = Route("/", "", "q", ("q",))


def properties(headers: bytes) -> bytes:
    return b"\x20\x00" + len(headers).to_bytes(4, "big") + headers


def headers_of(message: Published) -> dict[str, object]:
    return mapping(parse(message.properties).header_table())


def published(subjects: Subjects, subject: str, body: bytes) -> Published:
    sealed, encryption = asyncio.run(subjects.make_key_and_encrypt(subject, body))
    return Published(
        ROUTE,
        properties(encode({"who": subject})),
        persistent=True,
        encryption=encryption,
        body=sealed,
        body_size=len(body),
    )


def encryption_of(message: Published) -> Encryption:
    assert message.encryption is not None
    return message.encryption


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys")


@pytest.fixture
def subjects(keys: KeyStore) -> Subjects:
    return Subjects("who", keys, {})


def test_a_key_is_made_once_for_all_who_share_the_directory(keys: KeyStore) -> None:
    start = threading.Barrier(8)
    found: list[tuple[str, bytes]] = []

    def make() -> None:
        mine = KeyStore(keys.directory)
        start.wait()
        found.append(mine.current("grace"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    (key_id, key) = found[0]
    assert sorted(os.listdir(keys.directory)) == [key_id[:42], key_id]
    assert len(key) == 32
    assert "grace" not in key_id
    assert key_id[40:43] == "-1-"
    assert (keys.directory / key_id).stat().st_mode & 0o777 == 0o600
    assert keys.directory.stat().st_mode & 0o777 == 0o700


def test_a_destroyed_key_stays_so_and_the_next_has_another_number(keys: KeyStore) -> None:
    first, key = keys.current("ada")
    with open(keys.directory / first, "rb") as held:  # what unlinking leaves behind
        keys.destroy(first)
        keys.destroy(first)
        assert held.read() != key
    assert keys.read(first) is None
    assert not keys.is_there(first)
    (keys.directory / first).write_bytes(MAGIC + key)  # it comes back from a backup
    assert keys.read(first) is None
    assert keys.is_there(first)
    second, other = keys.current("ada")
    assert (second[:43], other == key) == (first[:41] + "2-", False)
    assert keys.known("ada") == [first, second]
    assert keys.known("bob") == []


def test_the_historys_word_counts_where_the_directory_was_lost(tmp_path: Path) -> None:
    before = KeyStore(tmp_path / "a")
    first, _ = before.current("ada")
    after = KeyStore(tmp_path / "b", {first: 7})
    second, _ = after.current("ada")
    assert second[:43] == first[:41] + "2-"
    assert after.known("ada") == [first, second]


def test_an_id_never_comes_twice_and_a_lost_directory_may_be_put_back(keys: KeyStore, tmp_path: Path) -> None:
    """Also into the one that was made in its place meanwhile: nothing that was encrypted under either is lost."""
    subjects = Subjects("who", keys, {})
    before = published(subjects, "ada", b"before")
    keys.directory.rename(tmp_path / "backup")
    restarted = Subjects("who", keys, {})
    after = published(restarted, "ada", b"after")
    assert before.encryption is not None
    assert after.encryption is not None
    assert before.encryption.key_id != after.encryption.key_id
    assert headers_of(restarted.decrypt(before))["x-unreadable"] == "the key is not here"
    shutil.copytree(tmp_path / "backup", keys.directory, dirs_exist_ok=True)
    restarted = Subjects("who", keys, {})
    assert [restarted.decrypt(each).body for each in (before, after)] == [b"before", b"after"]
    assert encryption_of(published(restarted, "ada", b"")).key_id == before.encryption.key_id
    found = sorted((before.encryption.key_id, after.encryption.key_id))
    assert keys.known("ada") == found
    assert asyncio.run(restarted.erase("ada")) == tuple(found)
    assert [headers_of(restarted.decrypt(each)).get("x-erased") for each in (before, after)] == [True, True]


def test_a_lost_key_of_an_erased_subject_is_of_no_use_when_it_comes_back(keys: KeyStore, tmp_path: Path) -> None:
    """The history never names it, and its mark was never made."""
    before = published(Subjects("who", keys, {}), "ada", b"before")
    assert before.encryption is not None
    lost = before.encryption.key_id
    keys.directory.rename(tmp_path / "backup")
    erased: dict[str, int] = {}
    subjects = Subjects("who", KeyStore(keys.directory, erased), erased)
    published(subjects, "ada", b"after")
    erased.update(dict.fromkeys(asyncio.run(subjects.erase("ada")), 3))
    assert lost not in erased
    shutil.rmtree(keys.directory)
    (tmp_path / "backup").rename(keys.directory)
    restarted = Subjects("who", KeyStore(keys.directory, erased), erased)
    assert headers_of(restarted.decrypt(before))["x-erased"] is True
    assert encryption_of(published(restarted, "ada", b"she is back")).key_id[:43] == lost[:41] + "2-"
    assert keys.is_there(lost)
    restarted.destroy_what_came_back()
    assert (keys.is_there(lost), keys.has_tombstone(lost)) == (False, True)


def test_a_name_whose_key_is_not_here_gives_way_to_a_new_one(keys: KeyStore) -> None:
    """A backup that was only half put back."""
    first, key = keys.current("ada")
    (keys.directory / first).unlink()
    assert keys.find("ada") is None
    second, _ = keys.current("ada")
    assert second != first
    assert keys.current("ada") == keys.find("ada") == (second, keys.read(second))
    (keys.directory / first).write_bytes(MAGIC + key)  # the other half
    assert keys.known("ada") == sorted((first, second))
    (keys.directory / second[:42]).write_bytes(MAGIC + b"nonsense")
    with pytest.raises(OSError, match="does not name a key"):
        keys.current("ada")


def test_a_key_lasts_before_anybody_can_find_it(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the power goes, a message under it may be in the log already."""
    steps: list[str] = []
    sync, link = system_calls.sync, os.link

    def synced(descriptor: int) -> None:
        sync(descriptor)
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def linked(source: Path, target: Path) -> None:
        link(source, target)
        steps.append("key" if target.name.count("-") == 2 else "current")

    keys.prepare()
    monkeypatch.setattr(system_calls, "sync", synced)
    monkeypatch.setattr(os, "link", linked)
    keys.current("ada")
    assert steps == ["file", "key", "directory", "file", "current"]


def test_what_is_no_key_is_refused_and_leftovers_go(keys: KeyStore) -> None:
    key_id, _ = keys.current("ada")
    (keys.directory / ".new-abc").write_bytes(b"x")
    keys.prepare()
    assert sorted(os.listdir(keys.directory)) == [key_id[:42], key_id]
    (keys.directory / key_id).write_bytes(MAGIC + b"short")
    with pytest.raises(OSError, match="is no key, it has 5 bytes"):
        keys.read(key_id)
    for odd in ("../../etc/passwd", "", key_id + "\n", key_id[:41] + "0", key_id[:-1], key_id[:42]):
        assert keys.read(odd) is None
        assert not keys.is_destroyed(odd)
        assert not keys.is_there(odd)


def test_a_body_comes_back_as_it_was(subjects: Subjects) -> None:
    for body in (b"", b"x", b"secret " * 10_000):
        message = published(subjects, "ada", body)
        assert (encryption_of(message).plain_size, len(message.body)) == (len(body), len(body) + 16)
        assert len(body) < 8 or body not in message.body  # few bytes may well be in there
        plain = subjects.decrypt(message)
        assert plain == replace(message, encryption=None, body=body, body_size=len(body))
        assert plain.properties is message.properties
    assert subjects.decrypt(plain) is plain


def test_no_nonce_comes_twice_also_not_when_the_count_is_used_up(
    subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    (encryption.COUNTS - 1).to_bytes(4, "big")  # the last one fits as well
    monkeypatch.setattr(encryption, "COUNTS", 1_000)
    for subject in ("ada", "bob"):
        subjects.keys.current(subject)
    nonces = [subjects.encrypt("ada", b"")[1].nonce for _ in range(1_000)]
    assert len({nonce[:8] for nonce in nonces}) == 1
    nonces += [subjects.encrypt("bob", b"")[1].nonce for _ in range(3)]
    assert len(set(nonces)) == 1_003
    assert {len(nonce) for nonce in nonces} == {12}
    assert len({nonce[:8] for nonce in nonces}) == 2


def test_an_erased_message_is_empty_and_says_so(subjects: Subjects, caplog: pytest.LogCaptureFixture) -> None:
    message, other = published(subjects, "ada", b"secret"), published(subjects, "bob", b"plain")
    assert subjects.decrypt(message).body == b"secret"  # the key is at hand now
    (key_id,) = asyncio.run(subjects.erase("ada"))
    erased = subjects.decrypt(message)
    assert (erased.body, erased.body_size, erased.encryption) == (b"", 0, None)
    assert headers_of(erased) == {"who": "ada", "x-erased": True}
    assert subjects.decrypt(other).body == b"plain"
    again = published(subjects, "ada", b"she is back")
    assert again.encryption is not None
    assert again.encryption.key_id != key_id
    assert subjects.decrypt(again).body == b"she is back"
    assert asyncio.run(subjects.erase("nobody")) == ()
    assert not caplog.records


def test_bytes_that_were_changed_are_not_delivered(subjects: Subjects, caplog: pytest.LogCaptureFixture) -> None:
    message, other = published(subjects, "ada", b"secret"), published(subjects, "bob", b"another")
    assert message.encryption is not None
    assert other.encryption is not None
    flipped = message.body[:-1] + bytes((message.body[-1] ^ 1,))
    for wrong in (
        replace(message, body=flipped),
        replace(message, body=b""),
        replace(message, body=other.body),
        replace(message, encryption=replace(message.encryption, nonce=b"")),
        replace(message, encryption=replace(message.encryption, nonce=other.encryption.nonce)),
        replace(message, encryption=replace(message.encryption, subject="bob")),
        replace(message, encryption=replace(message.encryption, key_id=other.encryption.key_id)),
    ):
        got = subjects.decrypt(wrong)
        assert (got.body, headers_of(got)["x-unreadable"]) == (b"", "these are not the bytes that were encrypted")
        assert "x-erased" not in headers_of(got)
    assert len(caplog.records) == 2  # once for each key


def test_a_key_that_is_not_here_is_no_erasure(subjects: Subjects, tmp_path: Path) -> None:
    message = published(subjects, "ada", b"secret")
    assert message.encryption is not None
    elsewhere = Subjects("", KeyStore(tmp_path / "elsewhere"), {})
    assert headers_of(elsewhere.decrypt(message)) == {"who": "ada", "x-unreadable": "the key is not here"}
    (subjects.keys.directory / message.encryption.key_id).write_bytes(MAGIC + b"short")
    assert headers_of(subjects.decrypt(message))["x-unreadable"] == "the key can't be read: " + (
        f"{subjects.keys.directory / message.encryption.key_id}: is no key, it has 5 bytes instead of 32"
    )


def test_the_event_takes_the_key_from_memory_and_destroys_what_is_left(tmp_path: Path) -> None:
    north, south = KeyStore(tmp_path / "north"), KeyStore(tmp_path / "south")
    there = Subjects("who", north, {})
    message = published(there, "ada", b"secret")
    assert message.encryption is not None
    key_id = message.encryption.key_id
    south.prepare()
    key = (north.directory / key_id).read_bytes()
    (south.directory / key_id).write_bytes(key)  # each node has a directory of its own, by mistake
    erased: dict[str, int] = {}
    here = Subjects("who", KeyStore(south.directory, erased), erased)
    assert here.decrypt(message).body == b"secret"
    erased[key_id] = 3
    here.erased([key_id])
    assert headers_of(here.decrypt(message))["x-erased"] is True
    assert not south.is_there(key_id)
    assert south.has_tombstone(key_id)
    assert encryption_of(published(here, "ada", b"")).key_id != key_id


def test_b15_a_key_that_came_back_is_destroyed_by_asking_again(tmp_path: Path) -> None:
    erased: dict[str, int] = {}
    subjects = Subjects("who", KeyStore(tmp_path / "keys", erased), erased)
    published(subjects, "ada", b"secret")
    (key_id,) = subjects.keys.known("ada")
    key = (subjects.keys.directory / key_id).read_bytes()
    erased.update(dict.fromkeys(asyncio.run(subjects.erase("ada")), 3))
    assert asyncio.run(subjects.erase("ada")) == ()
    (subjects.keys.directory / key_id).write_bytes(key)  # from a backup
    assert asyncio.run(subjects.erase("ada")) == (key_id,)  # the history says it once more
    assert not subjects.keys.is_there(key_id)
    assert asyncio.run(subjects.erase("ada")) == ()


def test_b15_a_key_that_another_node_destroyed_silently_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That node ended between the two, or its event is still on its way. What is published as soon as the key is marked
    must not be lost with it."""
    north, south = (Subjects("who", KeyStore(tmp_path / "keys"), {}) for _ in range(2))
    before = published(south, "ada", b"secret")
    assert south.decrypt(before).body == b"secret"
    asyncio.run(north.erase("ada"))
    after = published(south, "ada", b"she is back")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LOOK_AGAIN_SECONDS)
    restarted = Subjects("who", KeyStore(tmp_path / "keys"), {})
    assert restarted.decrypt(after).body == b"she is back"
    assert headers_of(south.decrypt(before))["x-erased"] is True


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({"who": 7}, "signedint|long"),
        ({"who": None}, "void"),
        ({"who": b"x"}, "binary"),
        ({"who": ""}, "such a string"),
        ({"who": "x" * 256}, "such a string"),
        ({"other": "x", "who": ["a"]}, "array"),
    ],
)
def test_a_header_that_names_nobody_is_refused(subjects: Subjects, headers: dict[str, object], wrong: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"header 'who' names the subject, .*, not ({wrong})"):
        subjects.subject_of(parse(properties(encode(headers))))


def test_only_the_header_makes_a_subject(subjects: Subjects) -> None:
    for raw in (b"\x00\x00", properties(b""), properties(encode({"whom": "ada"}))):
        assert subjects.subject_of(parse(raw)) is None
    assert subjects.subject_of(parse(properties(encode({"x": 1, "who": "Ada Lovelace ✓"})))) == "Ada Lovelace ✓"


def test_without_a_key_nothing_is_published(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ResourceError, match="no key for the message's subject: "):
        published(Subjects("who", KeyStore(tmp_path / "file" / "keys"), {}), "ada", b"x")


def test_headers_that_have_a_meaning_are_no_subjects() -> None:
    assert why_no_subject_header("x-subject") is None
    assert why_no_subject_header("CC") == "the header CC has a meaning of its own"
    assert why_no_subject_header("x-first-death-queue") is not None
    assert why_no_subject_header("x" * 200) == "a header's name has 1 to 128 bytes"


def test_a_consumer_gets_each_body_as_it_was_whatever_came_before_it(tmp_path: Path) -> None:
    """State kept from one delivery to the next must not let ciphertext through.

    Here a ciphertext often has the size of the plain body before it."""
    broker = DoubleBroker()
    broker.subjects = Subjects("who", KeyStore(tmp_path / "keys"), {})
    broker.subjects.keys.current("ada")
    wire = Wire(broker)
    wire.ask(1, "Queue.Declare", queue="q")
    wire.send(method(1, "Basic.Consume", queue="q", consumer_tag="c", no_ack=True))
    hers, nobodys = wire_properties(headers={"who": "ada"}), wire_properties(headers={"whom": "ada"})
    sizes = (48, 32, 16, 0, 0, 16)
    sent = [(b"x" * size, raw) for raw in (hers, nobodys, hers, nobodys) for size in sizes]
    said = wire.send(*[publish(1, "", "q", body, raw=raw) for body, raw in sent[:12]])
    for body, raw in sent[12:]:
        wire.connection.receive(publish(1, "", "q", body, raw=raw))
        wire.broker.turns.end()
    said += wire.read()
    logged = [event for event in broker.events if isinstance(event, Published)]
    assert [event.encryption is None for event in logged] == [raw is nobodys for _, raw in sent]
    assert [event.body_size for event in logged] == [len(body) for body, _ in sent]
    assert [each.body for each in said] == [body for body, _ in sent]


@pytest.mark.parametrize("value", [7, "", None])
def test_a_publish_whose_header_names_nobody_closes_the_channel(tmp_path: Path, value: object) -> None:
    broker = DoubleBroker()
    broker.subjects = Subjects("who", KeyStore(tmp_path / "keys"), {})
    wire = Wire(broker)
    wire.ask(1, "Queue.Declare", queue="q")
    (said,) = wire.send(publish(1, "", "q", b"secret", raw=wire_properties(headers={"who": value})))
    assert (said.name, said.reply_code) == ("Channel.Close", 406)
    assert not any(isinstance(event, Published) for event in broker.events)
