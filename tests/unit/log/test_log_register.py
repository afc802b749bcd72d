"""The register: all seals in one order, with notes that only ever grow, and nothing of it is lost by a crash (B-51)."""

import base64
import fcntl
import json
import random
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.cli.main import run
from rewindmq.engine.keeping.seals.merkle import consistency, root
from rewindmq.engine.keeping.seals.proof_verifier import leaf_hash, node_hash, parsed_note
from rewindmq.engine.keeping.seals.register import Register, opened
from rewindmq.engine.keeping.seals.seal import fingerprint
from tests.support.registers import ORIGIN, SealKeys, seal, write


class Place:
    """A sealed history, and its register."""

    def __init__(self, home: Path) -> None:
        self.data, self.register, self.keys = home / "data", home / "register", SealKeys(home)

    def seal(self, *options: object) -> int:
        return seal(self.data, self.keys, "--register", self.register, *options)

    def verify(self) -> int:
        where = ["--data", str(self.data), "--register", str(self.register)]
        return run(["verify_seals", "--quiet", *where, "--public-key", str(self.keys.public)])

    @property
    def lines(self) -> list[str]:
        return (self.register / "seals.jsonl").read_text().splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    write(place.data, range(3))
    assert place.seal("--origin", ORIGIN) == 0
    return place


def is_beginning(old_root: bytes, old_size: int, new_root: bytes, new_size: int, path: list[bytes]) -> bool:
    """The check of a consistency proof, as RFC 9162, section 2.1.4.2, writes it down."""
    if old_size == new_size:
        return not path and old_root == new_root
    if old_size & (old_size - 1) == 0:
        path = [old_root, *path]
    at, last = old_size - 1, new_size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    old = new = path[0]
    for other in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            old, new = node_hash(other, old), node_hash(other, new)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            new = node_hash(new, other)
        at, last = at >> 1, last >> 1
    return (old, new, last) == (old_root, new_root, 0)


def test_b51_a_tree_shows_that_it_goes_on_from_each_of_its_beginnings() -> None:
    leaves = [leaf_hash(b"%d" % number) for number in range(24)]
    for size in range(1, 25):
        for old in range(1, size + 1):
            path = consistency(leaves[:size], old)
            assert is_beginning(root(leaves[:old]), old, root(leaves[:size]), size, path)
            if old < size:
                other = [*leaves[: old - 1], leaf_hash(b"other")]
                assert not is_beginning(root(other), old, root(leaves[:size]), size, path)
    assert consistency(leaves, 0) == []


def test_b51_a_register_has_every_seal_in_one_order_and_only_grows(place: Place) -> None:
    assert [json.loads(line)["seal"]["partition"] for line in place.lines] == ["queues-0"]
    first, note = place.lines, (place.register / "note").read_text()
    assert place.seal() == 0
    assert (place.lines, (place.register / "note").read_text()) == (first, note)
    write(place.data, range(3, 6))
    assert place.seal("--origin", ORIGIN) == 0
    assert place.lines[: len(first)] == first
    assert len(place.lines) == len(first) + 1
    found = Register(place.register)
    assert found.sizes == [1, 2]
    assert parsed_note((place.register / "note").read_text()).size == 2
    assert place.verify() == 0


def test_b51_seals_of_before_are_in_a_new_register(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for begin in (0, 3, 6):
        write(place.data, range(begin, begin + 3))
        assert seal(place.data, place.keys) == 0
    assert place.seal("--origin", ORIGIN) == 0
    assert len(place.lines) == 3
    assert Register(place.register).sizes == [3]


def test_b51_the_register_is_a_file_of_copies(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (place.data / "log" / "queues-0").glob("_*.seal"):
        path.unlink()
    write(place.data, range(3, 5))
    assert place.seal() == 65
    assert "is gone; there is a copy" in capsys.readouterr().err
    assert place.verify() == 1


def test_b51_a_seal_is_registered_if_its_key_is_trusted(place: Place, tmp_path: Path) -> None:
    other = SealKeys(tmp_path, "other")
    write(place.data, range(3, 5))
    assert seal(place.data, other, "--public-key", place.keys.public) == 0
    new = tmp_path / "new"
    assert seal(place.data, other, "--register", new, "--origin", ORIGIN) == 0
    assert [each.seal.base_offset for each in Register(new).seals] == [3]
    assert seal(place.data, other, "--register", new, "--public-key", place.keys.public) == 0
    assert [each.seal.base_offset for each in Register(new).seals] == [3, 0]
    assert Register(new).sizes == [1, 2]


@pytest.mark.parametrize("rest", [b"", b'{"seal', b"{" * 70_000])
def test_b51_a_crash_before_the_note_loses_nothing(place: Place, rest: bytes) -> None:
    """The seal is in the log and the process ended: in the register there is nothing, or a part of a line."""
    write(place.data, range(3, 5))
    assert seal(place.data, place.keys) == 0
    with (place.register / "seals.jsonl").open("ab") as file:
        file.write(rest)
    assert len(Register(place.register).seals) == 1
    assert place.seal() == 0
    assert len(place.lines) == 2
    assert Register(place.register).sizes == [1, 2]
    assert place.verify() == 0


def test_b51_a_register_that_was_changed_signs_nothing_more(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    write(place.data, range(3, 5))
    assert place.seal() == 0
    path = place.register / "seals.jsonl"
    sound = path.read_bytes()
    lines = sound.splitlines(keepends=True)
    for wrong in (lines[:1], lines[::-1], []):
        path.write_bytes(b"".join(wrong))
        capsys.readouterr()
        assert place.verify() == 1
        assert place.seal() == 65
        assert "are not those that the note is over" in capsys.readouterr().err
    path.write_bytes(sound)
    assert place.verify() == 0
    note = place.register / "notes" / f"{2:020d}.note"
    kept = note.read_bytes()
    for forged in (b"", b"no note", kept.replace(b"orders", b"others")):
        note.write_bytes(forged)
        assert place.seal() == 65
        assert capsys.readouterr().err.count("\n") == 1
        note.write_bytes(kept)
    assert place.seal() == 0


def test_b51_a_note_of_another_key_is_noticed(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = Ed25519PrivateKey.generate()
    forged = tmp_path / "forged"
    with opened(forged, ORIGIN, key, {fingerprint(key.public_key()): key.public_key()}) as register:
        register.add(Register(place.register).seals)
        register.sign()
    (place.register / "notes" / f"{1:020d}.note").write_bytes((forged / "note").read_bytes())
    assert place.verify() == 1
    assert place.seal() == 65
    assert "no signature is one of the key" in capsys.readouterr().err


def test_b51_one_process_writes_a_register(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with (place.register / "seals.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert place.seal() == 65
    assert "another process writes this register" in capsys.readouterr().err
    assert place.seal() == 0


def test_b51_options_that_make_no_sense_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path)
    write(place.data, range(3))
    key = f"w+00000000+{base64.b64encode(bytes(33)).decode()}"
    for options, code, said in (
        ((), 65, "give --origin"),
        (("--origin", "two words"), 65, "is not a valid register name"),
        (("--origin", ORIGIN, "--timestamp", "tsa.example.org"), 64, "is not an address"),
        (("--origin", ORIGIN, "--timestamp-roots", "roots.pem"), 64, "give --timestamp URL"),
        (("--origin", ORIGIN, "--witness", "key", "http://localhost:1"), 64, "is not the key of a witness"),
        (("--origin", ORIGIN, "--witness", key, "http://localhost:1"), 64, "is not the key of a witness"),
    ):
        assert place.seal(*options) == code, options
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert seal(place.data, place.keys, "--origin", ORIGIN) == 64
    assert place.seal("--origin", ORIGIN) == 0
    assert place.seal("--origin", "example.org/others") == 65
    assert f"it is the register {ORIGIN}" in capsys.readouterr().err
    for command in (["prove", "queues-0:0"], ["verify_seals", "--public-key", str(place.keys.public)]):
        assert run([*command, "--data", str(place.data), "--register", str(tmp_path / "none")]) == 65
        assert "no register is here" in capsys.readouterr().err


def test_b51_what_no_note_covers_is_not_proven(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    write(place.data, range(3, 5))
    assert seal(place.data, place.keys) == 0
    prove = ["prove", "--data", str(place.data), "--register", str(place.register)]
    assert run([*prove, "queues-0:4"]) == 65
    assert "no note is over the seal" in capsys.readouterr().err
    assert place.seal() == 0
    assert run([*prove, f"queues-0:{random.Random(1).randrange(5)}"]) == 0
