"""Seals: every change of what was sealed is found, without a broker, and an event can be proven (B-05)."""

import base64
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from engine.cli.main import run
from engine.log.base import CorruptLog
from engine.log.embedded import EmbeddedLog
from engine.log.merkle import Tree, leaf_hash, proof, root_of
from engine.log.seals import BadSeal, check, check_proof, prove, seal, seal_path
from engine.log.segments import segment_files
from schemas.codec import Encoder
from schemas.events import Actor, Published, Purged, Route

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key()


def write(data: Path, count: int, begin: int = 0) -> None:
    log = EmbeddedLog.open(data, partitions=1, segment_bytes=20_000)
    encoder = Encoder()
    for number in range(begin, begin + count):
        prefix = encoder.prefix(1_000 + number, Actor("ann", 7))
        log.queues[0].append(1_000 + number, encoder.encode(prefix, Purged("/", f"queue {number}")))
        if number % 10 == 0:
            log.commit_and_wait()
    log.commit_and_wait()
    log.close()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments, all sealed."""
    data = tmp_path_factory.mktemp("sealed")
    write(data, 3_000)
    assert len(list(seal(data, KEY, 5_000))) >= 4
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "data")
    return tmp_path / "data"


def segments(data: Path) -> list[Path]:
    return segment_files(data / "log" / "queues-0")


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
    found = list(check(data, PUBLIC))
    assert [each.partition for each in found][-1] == "queues-0"
    assert found[-1].next_offset == 3_000
    assert list(seal(data, KEY, 6_000)) == []
    write(data, 500, 3_000)
    assert list(check(data, PUBLIC))[-1].next_offset >= 3_000  # what came since is not sealed yet, and no reproach
    again = list(seal(data, KEY, 7_000))
    assert again[-1].next_offset == 3_500
    assert list(check(data, PUBLIC))[-1] == again[-1]


def flip_a_bit(data: Path) -> None:
    path = segments(data)[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def rewrite_history(data: Path) -> None:
    """A partition made anew by somebody who has the software: sound in itself, with a sound chain, and other events."""
    shutil.rmtree(data / "log" / "queues-0")
    kept = data.parent / "original"
    forged = data.parent / "forged"
    write(forged, 2_900)
    shutil.copytree(forged / "log" / "queues-0", data / "log" / "queues-0")
    for path in (kept / "log" / "queues-0").glob("_*.seal"):
        shutil.copy(path, data / "log" / "queues-0")


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
    seal_path(segments(data)[1]).unlink()


def drop_all_seals(data: Path) -> None:
    for path in segments(data):
        seal_path(path).unlink()


def seal_with_another_key(data: Path) -> None:
    drop_all_seals(data)
    list(seal(data, Ed25519PrivateKey.generate(), 9_000))


def change_a_seal(data: Path) -> None:
    path = seal_path(segments(data)[0])
    content = json.loads(path.read_text())
    content["seal"]["time_ms"] += 1
    path.write_text(json.dumps(content))


def swap_two_seals(data: Path) -> None:
    one, other = (seal_path(path) for path in segments(data)[:2])
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


@pytest.mark.parametrize(
    ("harm", "where"),
    [
        (flip_a_bit, "block at byte"),
        (rewrite_history, "are not those that were sealed|records were sealed"),
        (drop_the_last_segment, "its segment is gone"),
        (drop_the_first_segment, "what was before is gone"),
        (drop_a_seal, "the segment before it has no seal"),
        (drop_all_seals, "there is no seal of it"),
        (seal_with_another_key, "the signature is not one of the key"),
        (change_a_seal, "the signature is not one of the key"),
        (swap_two_seals, "the seal of another segment|records were sealed|does not follow"),
    ],
)
def test_b05_every_harm_is_found(original: Path, data: Path, harm: Callable[[Path], None], where: str) -> None:
    shutil.copytree(original, data.parent / "original")
    harm(data)
    with pytest.raises((BadSeal, CorruptLog), match=where):
        list(check(data, PUBLIC))


def test_b05_an_event_is_proven_without_the_log(original: Path) -> None:
    rng = random.Random(5)
    for offset in [0, 2_999, *rng.sample(range(3_000), 20)]:
        given = prove(original, "queues-0", offset)
        sealed, record = check_proof(given, PUBLIC)
        assert sealed.base_offset <= offset < sealed.next_offset
        assert f"queue {offset}".encode() in record
        forged = given | {"record": base64.b64encode(record.replace(b"queue", b"quiet")).decode()}
        with pytest.raises(BadSeal, match="the record is another"):
            check_proof(forged, PUBLIC)
        with pytest.raises(BadSeal, match=r"the record is another|makes no sense"):
            check_proof(given | {"offset": offset + 1}, PUBLIC)
        with pytest.raises(BadSeal, match="the signature"):
            check_proof(given | {"seal": given["seal"] | {"root": "00" * 32}}, PUBLIC)


def test_what_is_not_sealed_can_not_be_proven(data: Path) -> None:
    write(data, 5, 3_000)
    with pytest.raises(BadSeal, match="offset 3004 is not sealed yet: run 'rewindmq seal'"):
        prove(data, "queues-0", 3_004)


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[tuple[str, str]]:
    private, public = tmp_path / "seal.key", tmp_path / "seal.pub"
    private.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return str(private), str(public)


def test_the_commands(
    data: Path, keys: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = keys
    write(data, 7, 3_000)
    assert run(["seal", "--data", str(data), "--key", private, "--formatter", "json"]) == 0
    row = json.loads(capsys.readouterr().out)[-1]
    assert (row["partition"], row["to"]) == ("queues-0", 3_006)
    assert run(["verify_seals", "--data", str(data), "--public-key", public]) == 0
    assert "queues-0" in capsys.readouterr().out
    assert run(["prove", "queues-0:3001", "--data", str(data)]) == 0
    (tmp_path / "proof.json").write_text(capsys.readouterr().out)
    assert run(["check_proof", str(tmp_path / "proof.json"), "--public-key", public]) == 0
    assert "Purged(vhost='/', queue='queue 3001')" in capsys.readouterr().out
    flip_a_bit(data)
    assert run(["verify_seals", "--data", str(data), "--public-key", public]) == 1
    assert "block at byte" in capsys.readouterr().err
    assert run(["prove", "3001", "--data", str(data)]) == 64
    assert run(["seal", "--data", str(data), "--key", public]) == 65
    assert "no private key in PEM" in capsys.readouterr().err


def test_a_proof_shows_the_body_of_a_message(
    tmp_path: Path, keys: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = EmbeddedLog.open(tmp_path / "data", partitions=1)
    encoder = Encoder()
    event = Published(Route("/", "", "q", ("q",)), b"", None, None, True, None, None, b"what was said", 13)
    log.queues[0].append(1_000, encoder.encode(encoder.prefix(1_000, Actor("ann", 7)), event))
    log.commit_and_wait()
    log.close()
    list(seal(tmp_path / "data", KEY, 5_000))
    (tmp_path / "proof.json").write_text(json.dumps(prove(tmp_path / "data", "queues-0", 0)))
    assert run(["check_proof", str(tmp_path / "proof.json"), "--public-key", keys[1]]) == 0
    assert "body=b'what was said'" in capsys.readouterr().out


def test_no_log(tmp_path: Path, keys: tuple[str, str]) -> None:
    assert run(["verify_seals", "--data", str(tmp_path), "--public-key", keys[1]]) == 65
