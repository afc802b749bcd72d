"""Seals: every change of what was sealed is found and located, without a broker, and an event can be proven (B-05)."""

import base64
import dataclasses
import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from rewindmq.engine.cli.main import run
from rewindmq.engine.keeping.seals import sealer as sealing
from rewindmq.engine.keeping.seals.commitments import HEAD_BYTES
from rewindmq.engine.keeping.seals.fingerprints import located
from rewindmq.engine.keeping.seals.in_files import segmented
from rewindmq.engine.keeping.seals.merkle import Tree, proof
from rewindmq.engine.keeping.seals.proof_verifier import leaf_hash, root_of
from rewindmq.engine.keeping.seals.seal import (
    BadSeal,
    Keys,
    Seal,
    StoredSeal,
    check_proof,
    fingerprint,
    read_copies,
    signed,
)
from rewindmq.engine.keeping.seals.sealer import Harm, check, check_parent, prove
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.index import index_path, lengths_path
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Published, Purged
from rewindmq.schemas.values import Actor, Route
from tests.support.moved_queue import write_moved
from tests.support.records import SCHEMA_BYTES

KEY = Ed25519PrivateKey.generate()
KEYS = {fingerprint(KEY.public_key()): KEY.public_key()}


@pytest.fixture(autouse=True, scope="module")
def short_stretches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sealing, "STRETCH_RECORDS", 500)
        yield


def write(data: Path, numbers: list[int] | range, in_commit: int = 50) -> None:
    log = EmbeddedLog.open(data, partitions=1, segment_bytes=SCHEMA_BYTES + 13_600)
    encoder = Encoder()
    for number in numbers:
        prefix = encoder.prefix(1_000 + number, Actor("ann", 7))
        log.queues[0].append(1_000 + number, encoder.encode(prefix, Purged("/", f"queue {number}")))
        if number % in_commit == 0:
            log.commit_and_wait()
    log.commit_and_wait()
    log.close()


def seal(data: Path, key: Ed25519PrivateKey = KEY, copies: tuple[StoredSeal, ...] = ()) -> list[Seal]:
    return [each.seal for part in segmented(data) for each in sealing.seal(part, key, 5_000, copies=copies)]


def harms(data: Path, keys: Keys = KEYS, copies: tuple[StoredSeal, ...] = ()) -> list[Harm]:
    return [each.harm for each in check(segmented(data), keys, copies) if each.harm is not None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments, all sealed, in several stretches."""
    data = tmp_path_factory.mktemp("sealed")
    write(data, range(3_000))
    assert len(seal(data)) >= 5
    assert len(segments(data)) >= 4
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "data")
    return tmp_path / "data"


def segments(data: Path) -> list[Path]:
    return segment_files(data / "log" / "queues-0")


def seals(data: Path) -> list[Path]:
    return sorted((data / "log" / "queues-0").glob("_*.seal"))


def secrets_of(data: Path) -> list[Path]:
    return sorted((data / "log" / "queues-0").glob("_*.secret"))


def test_merkle_trees_of_every_size_and_proofs_of_every_leaf() -> None:
    for size in range(1, 40):
        leaves = [leaf_hash(b"%d" % number) for number in range(size)]
        tree = Tree()
        for leaf in leaves:
            tree.add(leaf)
        for index in range(size):
            path = proof(leaves, index)
            assert root_of(leaves[index], index, size, path) == tree.root()
            wrong = root_of(leaf_hash(b"other"), index, size, path)
            assert wrong != tree.root()
            with pytest.raises(ValueError, match="the proof is too long"):
                root_of(leaves[index], index, size, [*path, leaf_hash(b"")] if size > 1 else [leaf_hash(b"")])
    assert Tree().root() == hashlib.sha256(b"").digest()


def test_b05_what_is_sealed_holds_and_goes_on(data: Path) -> None:
    assert harms(data) == []
    assert [each.seal.next_offset for each in check(segmented(data), KEYS) if each.seal][-1] == 3_000
    assert seal(data) == []
    before = {path: path.read_bytes() for path in seals(data)}
    write(data, range(3_000, 3_500))
    assert harms(data) == []  # what came since is not sealed yet, and no reproach
    assert [each.next_offset for each in seal(data)][-1] == 3_500
    assert harms(data) == []
    assert {path: path.read_bytes() for path in before} == before  # a seal is never changed


def test_b05_the_seals_need_no_index(data: Path) -> None:
    for path in [*(data / "log" / "queues-0").glob("_*.index"), *(data / "log" / "queues-0").glob("_*.lengths")]:
        path.unlink()
    assert harms(data) == []


def flip_a_bit(data: Path, at: int = -1_000) -> None:
    path = segments(data)[1]
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def flip_a_bit_of_a_schema(data: Path) -> None:
    """In a word of its documentation, so that it stays JSON."""
    flip_a_bit(data, segments(data)[1].read_bytes().index(b"Envelope"))


def written_anew(numbers: list[int], in_commit: int = 50) -> Callable[[Path], None]:
    """A partition made by somebody who has the software: sound in itself, with a sound chain, and other events."""

    def write_anew(data: Path) -> None:
        forged = data.parent / "forged"
        write(forged, numbers, in_commit)
        for path in (*seals(data), *(data / "log" / "queues-0").glob("_*.secret")):
            shutil.copy(path, forged / "log" / "queues-0")
        shutil.rmtree(data / "log" / "queues-0")
        shutil.copytree(forged / "log" / "queues-0", data / "log" / "queues-0")

    return write_anew


ALL = list(range(3_000))


def drop_the_last_segment(data: Path) -> None:
    path = segments(data)[-1]
    for each in path.parent.glob(f"*{path.stem}.*"):
        if each.suffix != ".seal":
            each.unlink()


def drop_the_first_segment(data: Path) -> None:
    path = segments(data)[0]
    for each in path.parent.glob(f"*{path.stem}.*"):
        each.unlink()


def drop_a_seal(data: Path) -> None:
    seals(data)[1].unlink()


def drop_all_seals(data: Path) -> None:
    for path in seals(data):
        path.unlink()


def seal_with_another_key(data: Path) -> None:
    drop_all_seals(data)
    seal(data, Ed25519PrivateKey.generate())


def change_a_seal(data: Path) -> None:
    path = seals(data)[0]
    content = json.loads(path.read_text())
    content["seal"]["time_ms"] += 1
    path.write_text(json.dumps(content))


def swap_two_seals(data: Path) -> None:
    one, other = (path for path in seals(data)[:2])
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def empty_a_seal(data: Path) -> None:
    seals(data)[2].write_text("{}")


@pytest.mark.parametrize(
    ("harm", "offset", "what"),
    [
        (flip_a_bit, 1_151, "block at byte .*its bytes do not match"),
        (flip_a_bit_of_a_schema, 601, "block at byte"),
        (written_anew([*ALL[:1_234], 7, *ALL[1_235:]]), 1_234, "the record at offset 1234 is not as it was sealed"),
        (written_anew([*ALL[:1_234], *ALL[1_235:]]), 1_234, "a record was dropped at offset 1234"),
        (written_anew([*ALL[:1_234], *ALL[1_240:]]), 1_234, "6 records were dropped at offset 1234"),
        (written_anew([*ALL[:1_234], 7, *ALL[1_234:]]), 1_234, "a record was put in at offset 1234"),
        (written_anew([*ALL[:20], 44, *ALL[21:44], 20, *ALL[45:]]), 20, "at offsets 20 and 44 were swapped"),
        (written_anew(ALL[:2_900]), 2_900, "the log ends at offset 2900, and was sealed up to offset 2999"),
        (drop_the_last_segment, None, "the log ends at offset"),
        (drop_the_first_segment, 501, "the records before it are gone"),
        (drop_the_first_segment, 0, "the seal of offsets 0 to 500 is gone"),
        (drop_a_seal, 501, "the seal of offsets 501 to .* is gone, which .* continues"),
        (drop_all_seals, 0, "there is no seal of it"),
        (seal_with_another_key, 0, "the signature is not one of the key"),
        (change_a_seal, 0, "the signature is not one of the key"),
        (empty_a_seal, None, "not a seal"),
    ],
)
def test_b05_every_harm_is_found_and_located(
    data: Path, harm: Callable[[Path], None], offset: int | None, what: str
) -> None:
    harm(data)
    found = harms(data)
    [told] = [each for each in found if each.partition == "queues-0" and re.search(what, each.what)][:1]
    assert offset in (None, told.offset), found


def test_swapped_seals_are_the_same_seals(data: Path) -> None:
    swap_two_seals(data)
    assert harms(data) == []  # what they say is what counts, and in which order they were made


def test_b05_records_written_anew_with_the_same_bytes_have_another_chain(data: Path) -> None:
    written_anew(ALL, in_commit=25)(data)
    found = harms(data)
    assert found[0].offset == 0
    assert "the records are those that were sealed, the hash chain is not" in found[0].what


def test_b05_what_newest_seals_said_is_missed_by_who_kept_copies(data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "copies"
    kept.mkdir()
    for path in seals(data):
        shutil.copy(path, kept)
    copies = tuple(read_copies(kept))
    assert harms(data, copies=copies) == []
    drop_the_last_segment(data)
    end = PartitionReader(data / "log" / "queues-0").next_offset
    for path in seals(data):
        if json.loads(path.read_text())["seal"]["next_offset"] > end:
            path.unlink()
    assert harms(data) == []  # nobody else can tell
    found = harms(data, copies=copies)
    assert any("is gone; there is a copy" in each.what for each in found)
    assert any(f"the log ends at offset {end}" in each.what for each in found)
    with pytest.raises(BadSeal, match="is gone; there is a copy"):
        seal(data, copies=copies)  # nor is what is left signed again


def test_two_who_seal_at_the_same_time_are_both_right(data: Path) -> None:
    partition = segmented(data)[1]
    stored, _ = partition.seals()
    other = dataclasses.replace(stored[-1].seal, time_ms=6_000)
    steps, found = sealing._linked(partition, [*stored, dataclasses.replace(stored[-1], seal=other)])
    assert found == []
    assert steps[-1].before == steps[-2].before is not None


def test_b05_another_partitions_seal_does_not_cover_what_is_not_sealed(data: Path) -> None:
    write(data, range(3_000, 3_010))
    part = segmented(data)[1]
    stored, _ = part.seals()
    foreign = dataclasses.replace(stored[-1].seal, partition="queues-1", base_offset=2_990, next_offset=3_005)
    (part.directory / "_00000000000000002990.seal").write_text(signed(foreign, KEY).line)
    assert [(each.base_offset, each.next_offset) for each in seal(data)] == [(3_000, 3_010)]
    check_proof(prove(part, 3_002), KEYS)
    (harm,) = harms(data)
    assert "the seal of another partition, queues-1" in harm.what


def test_a_new_key_is_told_of_the_one_before(data: Path) -> None:
    new = Ed25519PrivateKey.generate()
    write(data, range(3_000, 3_010))
    with pytest.raises(BadSeal, match="its seals are of another key"):
        seal(data, new)
    part = segmented(data)[1]
    assert [each.seal.base_offset for each in sealing.seal(part, new, 6_000, KEYS)] == [3_000]
    assert harms(data, KEYS | {fingerprint(new.public_key()): new.public_key()}) == []
    assert [each.offset for each in harms(data)] == [3_000]


def test_prints_locate_in_records_that_are_alike() -> None:
    a, b, c, nothing = (leaf_hash(name)[:4] for name in (b"a", b"b", b"c", b""))
    assert located(a * 20, a * 9 + b + a * 10, 100, nothing) == (
        109,
        "the record at offset 109 is not as it was sealed",
    )
    assert located(a + b + c, a + c + b, 0, nothing) == (1, "the records at offsets 1 and 2 were swapped")
    assert located(a + b + c, a + nothing + c, 0, nothing) == (1, "nothing is left at offset 1")
    assert located(a + b + c, a, 0, nothing) == (1, "the log ends at offset 1, and was sealed up to offset 2")


def test_b05_an_event_is_proven_without_the_log(original: Path) -> None:
    rng = random.Random(5)
    part = segmented(original)[1]
    for offset in [0, 2_999, *rng.sample(range(3_000), 20)]:
        given = prove(part, offset)
        proven = check_proof(given, KEYS)
        record = proven.record
        assert proven.seal["base_offset"] <= offset < proven.seal["next_offset"]
        assert f"queue {offset}".encode() in record
        forged = given | {"record": [{"shown": base64.b64encode(record.replace(b"queue", b"quiet")).decode()}]}
        with pytest.raises(BadSeal, match="the record is another"):
            check_proof(forged, KEYS)
        with pytest.raises(BadSeal, match=r"the record is another|makes no sense"):
            check_proof(given | {"offset": offset + 1}, KEYS)
        with pytest.raises(BadSeal, match="the signature"):
            check_proof(given | {"seal": given["seal"] | {"root": "00" * 32}}, KEYS)


def test_what_is_not_sealed_can_not_be_proven(data: Path) -> None:
    write(data, range(3_000, 3_005))
    with pytest.raises(BadSeal, match="offset 3004 is not sealed yet: run 'rewindmq seal'"):
        prove(segmented(data)[1], 3_004)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    private, public = tmp_path / "seal.key", tmp_path / "seal.pub"
    private.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return str(private), str(public)


def test_the_commands(data: Path, keys: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = keys
    copies = tmp_path / "copies"
    assert run(["export_seals", "--data", str(data)]) == 0
    copies.write_text(capsys.readouterr().out)
    write(data, range(3_000, 3_007))
    assert run(["seal", "--data", str(data), "--key", private, "--copies", str(copies), "--formatter", "json"]) == 0
    row = json.loads(capsys.readouterr().out)[-1]
    assert (row["partition"], row["to"]) == ("queues-0", 3_006)
    assert [each.seal.digest for each in read_copies(copies)][-1] == row["seal"]
    verify = ["verify_seals", "--data", str(data), "--public-key", public, "--copies", str(copies)]
    assert run(verify) == 0
    assert "queues-0" in capsys.readouterr().out
    assert run(["prove", "queues-0:3001", "--data", str(data)]) == 0
    (tmp_path / "proof.json").write_text(capsys.readouterr().out)
    assert run(["check_proof", str(tmp_path / "proof.json"), "--public-key", public]) == 0
    assert "Purged queue='queue 3001'" in capsys.readouterr().out
    newest = seals(data)[-1]
    newest.rename(tmp_path / "newest")
    assert run(verify) == 1
    assert "queues-0 offset 3000: the seal of offsets 3000 to 3006 is gone; there is a copy" in capsys.readouterr().err
    assert run(["seal", "--data", str(data), "--key", private, "--copies", str(copies)]) == 65
    (tmp_path / "newest").rename(newest)
    flip_a_bit(data)
    assert run(verify) == 1
    assert "block at byte" in capsys.readouterr().err
    assert run(["prove", "3001", "--data", str(data)]) == 64
    assert run(["prove", "queues-7:1", "--data", str(data)]) == 65
    assert run(["verify_seals", "--public-key", public]) == 64


def test_a_file_that_is_no_key_is_bad_input_and_a_wrong_key_a_finding(
    data: Path, keys: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = keys
    (tmp_path / "proof.json").write_text(json.dumps(prove(segmented(data)[1], 1)))
    commands = (["verify_seals", "--data", str(data)], ["check_proof", str(tmp_path / "proof.json")])
    for command in commands:
        for file in (private, str(tmp_path / "missing"), str(tmp_path)):
            assert run([*command, "--public-key", file]) == 65
            assert capsys.readouterr().err.count("\n") == 1
    assert run([*commands[0], "--public-key", public, "--copies", str(tmp_path / "missing")]) == 65
    assert run([*commands[0], "--public-key", public, "--copies", public]) == 65
    for file in (public, str(tmp_path / "missing")):
        assert run(["seal", "--data", str(data), "--key", file]) == 65
    other = Ed25519PrivateKey.generate().public_key()
    (tmp_path / "other.pub").write_bytes(other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for command in commands:
        assert run([*command, "--public-key", str(tmp_path / "other.pub")]) == 1
        assert "the signature is not one of the key" in capsys.readouterr().err
        assert run([*command, "--public-key", str(tmp_path / "other.pub"), "--public-key", public]) == 0


@pytest.mark.parametrize("odd", ["[" * 100_000, None], ids=["nested", "half a surrogate pair"])
def test_what_somebody_puts_among_the_seals_is_one_finding(
    data: Path, keys: tuple[str, str], odd: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = segmented(data)[1].seals()[0][-1]
    text = odd or dataclasses.replace(stored, seal=dataclasses.replace(stored.seal, partition="\ud800")).line
    (data / "log" / "queues-0" / "_99999999999999999999.seal").write_text(text)
    assert run(["verify_seals", "--data", str(data), "--public-key", keys[1]]) == 1
    assert capsys.readouterr().err.endswith("_99999999999999999999.seal: not a seal\n")
    (tmp_path / "proof").write_text(text)
    assert run(["check_proof", str(tmp_path / "proof"), "--public-key", keys[1]]) in (1, 65)


def test_a_proof_shows_the_body_of_a_message(
    tmp_path: Path, keys: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = EmbeddedLog.open(tmp_path / "data", partitions=1)
    encoder = Encoder()
    event = Published(Route("/", "", "q", ("q",)), b"", persistent=True, body=b"what was said", body_size=13)
    log.queues[0].append(1_000, encoder.encode(encoder.prefix(1_000, Actor("ann", 7)), event))
    log.commit_and_wait()
    log.close()
    seal(tmp_path / "data")
    (tmp_path / "proof.json").write_text(json.dumps(prove(segmented(tmp_path / "data")[1], 0)))
    assert run(["check_proof", str(tmp_path / "proof.json"), "--public-key", keys[1]]) == 0
    said = capsys.readouterr().out.splitlines()
    sealed, body = said[0].rpartition(" ")[2].rstrip("."), said[-1]
    assert said[0].startswith(
        "The proof holds: event 0 of queues-0 is in the history that was sealed at 1970-01-01T00:00:0"
    )
    assert said[1:3] == ["time: 1970-01-01T00:00:01.000+00:00", "user: ann"]
    assert said[3] == "what: Published routing_key=q queues=[q] persistent body=13 bytes"
    assert body == "body: what was said"
    for how in ("--format=json", "--formatter=json"):
        assert run(["check_proof", str(tmp_path / "proof.json"), "--public-key", keys[1], how]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["partition"], found["offset"], found["event"], found["sealed"]) == (
            "queues-0",
            0,
            "Published",
            sealed,
        )
        assert (found["body"], found["body_encoding"], found["fields"]["body_size"]) == ("what was said", "utf-8", 13)


def test_no_log(tmp_path: Path, keys: tuple[str, str]) -> None:
    assert run(["verify_seals", "--data", str(tmp_path), "--public-key", keys[1]]) == 65


# -- a block that is gone, and prints that are not those of the seal ---------------------------------------------------


def drop_a_block(data: Path) -> int:
    """From the middle of a segment, and the index with it. The offset of its first record."""
    path = segments(data)[1]
    found = [block for block in PartitionReader(path.parent).read() if block.file == path]
    block, behind = found[3], found[4]
    content = path.read_bytes()
    path.write_bytes(content[: block.position] + content[behind.position :])
    for sidecar in (index_path(path), lengths_path(path)):
        sidecar.unlink(missing_ok=True)
    return block.first_offset


def test_a_dropped_block_whose_index_is_gone_is_located(tmp_path: Path) -> None:
    """The block behind says that it belongs elsewhere."""
    data = tmp_path / "data"
    write(data, range(3_000))
    seal(data)
    assert harms(data) == []
    offset = drop_a_block(data)
    found = next(each for each in harms(data) if each.partition == "queues-0")
    assert found.offset == offset
    assert f"that of offset {offset} belongs here" in found.what


def test_prints_that_are_not_those_of_the_seal_are_noticed(data: Path) -> None:
    path = secrets_of(data)[1]
    content = path.read_bytes()
    for number in (HEAD_BYTES, HEAD_BYTES + 7, len(content) - 1):
        path.write_bytes(content[:number] + bytes([content[number] ^ 8]) + content[number + 1 :])
        [harm] = harms(data)
        assert (harm.partition, harm.offset) == ("queues-0", 501)
        assert harm.what.endswith("the prints of the seal, by which a change is located, are others")
    path.write_bytes(content[:HEAD_BYTES])
    [harm] = harms(data)
    assert harm.what.endswith("are gone")
    path.write_bytes(content)
    assert harms(data) == []


@pytest.mark.parametrize("content", [None, b"", b"\0" * HEAD_BYTES])
def test_b05_a_lost_secret_is_reported_and_the_chain_proves_its_stretch(data: Path, content: bytes | None) -> None:
    """Also that of the stretch before it, from which its chain comes."""
    for path in secrets_of(data)[1:3]:
        path.unlink() if content is None else path.write_bytes(content)
    found = harms(data)
    bases = [501, [each.seal.base_offset for each in segmented(data)[1].seals()[0]][2]]
    assert [(harm.offset, harm.records) for harm in found] == [(base, False) for base in bases]
    assert all(
        "the secret of the seal of offsets" in harm.what and " is gone: only a later seal" in harm.what
        for harm in found
    )
    with pytest.raises(
        BadSeal, match=r"the secret of the seal of offsets 501 to .* is gone: it proves no single record"
    ):
        prove(segmented(data)[1], 600)
    written_anew([*ALL[:700], 7, *ALL[701:]])(data)
    assert (501, True) in [(harm.offset, harm.records) for harm in harms(data)]
    assert "is not as sealed, by the hash chain" in str(harms(data))


def test_without_a_secret_the_end_of_a_log_is_missed_all_the_same(data: Path) -> None:
    drop_the_last_segment(data)
    for path in secrets_of(data):
        path.unlink()
    assert any(harm.records and "the log ends at offset" in harm.what for harm in harms(data))


def test_sealing_goes_on_when_the_newest_secret_is_gone(data: Path) -> None:
    secrets_of(data)[-1].unlink()
    write(data, range(3_000, 3_100))
    assert [each.base_offset for each in seal(data)] == [3_000]
    assert [harm.records for harm in harms(data)] == [False]


def test_a_copy_with_its_secret_replaces_a_secret_that_is_gone(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export_seals", "--data", str(data)]) == 0
    (tmp_path / "copies").write_text(capsys.readouterr().out)
    assert run(["export_seals", "--data", str(data), "--secrets"]) == 0
    (tmp_path / "with_secrets").write_text(capsys.readouterr().out)
    secrets_of(data)[1].unlink()
    assert "is gone: only a later seal" in str(harms(data, copies=tuple(read_copies(tmp_path / "copies"))))
    [harm] = harms(data, copies=tuple(read_copies(tmp_path / "with_secrets")))
    assert harm.what.endswith("the prints of the seal, by which a change is located, are gone")


def test_a_secret_is_there_before_its_seal_and_for_its_owner_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {path.stat().st_mode & 0o777 for path in secrets_of(data)} == {0o600}
    write(data, range(3_000, 3_100))
    before = len(secrets_of(data))

    def crash(*_: object) -> None:
        raise OSError("a crash")

    monkeypatch.setattr("os.link", crash)
    with pytest.raises(OSError, match="a crash"):
        seal(data)
    monkeypatch.undo()
    assert len(secrets_of(data)) == before + 1 == len(seals(data)) + 1
    monkeypatch.setattr(sealing, "STRETCH_RECORDS", 500)
    seal(data)
    assert len(secrets_of(data)) == before + 1 == len(seals(data))
    assert harms(data) == []


def test_a_partition_that_came_later_is_sealed_from_its_beginning(tmp_path: Path) -> None:
    moved = write_moved(tmp_path / "data")
    early = [each for each in segmented(moved.data) if each.name != moved.now]
    copies = tuple(each for part in early for each in sealing.seal(part, KEY, 5_000))
    assert [(harm.partition, harm.offset) for harm in harms(moved.data, copies=copies)] == [(moved.now, 0)]
    later = {each.partition: each.base_offset for each in seal(moved.data)}
    assert later == {moved.now: 0}
    assert harms(moved.data, copies=copies) == []

    parent = check_parent(segmented(moved.data), KEYS, copies, {each.seal.partition: 1_000 for each in copies})
    assert [each.harm for each in parent if each.harm is not None] == []
    shutil.rmtree(moved.data / "log" / moved.now)
    with pytest.raises(LogError, match=f"{moved.now}: this partition of the log .* is gone"):
        harms(moved.data, copies=copies)
