"""`rewindmq seal --register` with real witnesses and time-stamp authorities, also absent or senseless ones (B-51)."""

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rewindmq.engine.cli.main import run
from rewindmq.engine.keeping.seals import outside
from tests.support.authority import REPLY, Answer, TimeStampAuthority, text_of
from tests.support.certificates import Authority
from tests.support.needs import needed
from tests.support.ports import free_port
from tests.support.registers import ORIGIN, HandWitness, SealKeys, seal, write
from tests.support.witness.server import WitnessProcess, require_witness

needed("openssl")


class Place:
    """A history, and its register."""

    def __init__(self, home: Path) -> None:
        self.home, self.data, self.register, self.keys = home, home / "data", home / "register", SealKeys(home)
        self.written = 0

    def write_more(self) -> None:
        write(self.data, range(self.written, self.written + 3))
        self.written += 3

    def seal(self, *options: object) -> int:
        return seal(self.data, self.keys, "--register", self.register, "--origin", ORIGIN, *options)

    def stamps(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.register / "notes").glob("*.tsr"))

    def check(self, offset: int, *options: object) -> int:
        """Prove an offset, and check the proof."""
        proof = self.home / "proof.json"
        where = ["--data", str(self.data), "--register", str(self.register)]
        with proof.open("w") as file, contextlib.redirect_stdout(file):
            assert run(["prove", f"queues-0:{offset}", *where]) == 0
        return run(["check_proof", str(proof), "--public-key", str(self.keys.public), *map(str, options)])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.write_more()
    return place


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimeStampAuthority]:
    with TimeStampAuthority(tmp_path_factory.mktemp("tsa")) as running:
        yield running


@pytest.fixture(autouse=True)
def honest(authority: TimeStampAuthority) -> None:
    authority.answer = authority.stamp


def test_b51_an_authority_stamps_each_note_once(place: Place, authority: TimeStampAuthority) -> None:
    stamp = ("--timestamp", authority.url, "--timestamp-roots", authority.roots)
    before = authority.requests
    for size in (1, 2):
        assert place.seal(*stamp) == 0
        assert place.seal(*stamp) == 0  # nothing is new: nothing is asked
        assert authority.requests - before == size
        place.write_more()
    assert place.stamps() == [1, 2]
    said = text_of(place.register / "notes" / f"{2:020d}.tsr")
    assert "Status: Granted." in said
    assert "Hash Algorithm: sha256" in said
    assert place.check(4, "--timestamp-roots", authority.roots) == 0


Broken = Callable[[TimeStampAuthority, bytes], Answer]
NONSENSE: tuple[tuple[Broken, str], ...] = (
    (lambda _, __: (500, "text/plain", b"\x1b[31mno\nroom"), "status 500: ?[31mno room"),
    (lambda _, __: (200, "text/html", b"<html>"), "not a time-stamp authority"),
    (lambda _, __: (200, REPLY, b""), "not an answer to a request for a time stamp"),
    (lambda _, __: (200, REPLY, bytes(range(256)) * 200), "not an answer to a request for a time stamp"),
    (lambda _, __: (200, REPLY, bytes(outside.MOST_BYTES + 1)), "longer than 65536 bytes"),
    (lambda tsa, _: tsa.stamp(b"no request"), "the authority refused: status 2"),
    (lambda tsa, asked: tsa.stamp(asked.replace(asked[24:56], bytes(32))), "about something else than the note"),
    (lambda tsa, asked: tsa.stamp(asked[:-4] + bytes([asked[-4] ^ 1]) + asked[-3:]), "its nonce differs"),
)


@pytest.mark.parametrize(("broken", "said"), NONSENSE, ids=range(len(NONSENSE)))
def test_b51_an_authority_that_says_nonsense_costs_no_seal(
    place: Place, authority: TimeStampAuthority, broken: Broken, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    authority.answer = lambda asked: broken(authority, asked)
    assert place.seal("--timestamp", authority.url) == 69
    shown = capsys.readouterr()
    assert said in shown.err
    assert "the seals and the note are kept: the next 'seal' asks again" in shown.err
    assert shown.err.count("\n") == 1
    assert "queues-0" in shown.out
    assert (place.stamps(), (place.register / "note").exists()) == ([], True)
    assert place.check(1) == 0
    authority.answer = authority.stamp
    assert place.seal("--timestamp", authority.url) == 0
    assert place.stamps() == [1]


def test_b51_an_authority_that_is_away_or_silent_costs_no_seal(
    place: Place, authority: TimeStampAuthority, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.seal("--timestamp", f"http://127.0.0.1:{free_port()}/") == 69
    assert "no answer: All connection attempts failed" in capsys.readouterr().err
    with drip() as url, monkeypatch.context() as patch:
        patch.setattr(outside, "ANSWER_SECONDS", 0.5)
        assert place.seal("--timestamp", url) == 69
    assert "no answer within 0 seconds" in capsys.readouterr().err
    assert place.seal("--timestamp", authority.url) == 0
    assert place.stamps() == [1]


@contextlib.contextmanager
def drip() -> Iterator[str]:
    """A server that sends a byte of its headers now and then, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
                    while True:
                        connection.sendall(b"y")
                        time.sleep(0.05)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    thread.join()


def test_b51_an_authority_under_another_root_is_refused(
    place: Place, authority: TimeStampAuthority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Authority(tmp_path, "other").certificate
    assert place.seal("--timestamp", authority.url, "--timestamp-roots", other) == 69
    assert f"the time stamp is not one of an authority under {other}" in capsys.readouterr().err
    assert place.stamps() == []
    assert place.seal("--timestamp", authority.url) == 0
    assert place.check(0) == 0
    assert place.check(0, "--timestamp-roots", other) == 1
    assert place.check(0, "--timestamp-roots", authority.roots) == 0


# -- witnesses ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WitnessProcess]:
    require_witness()
    with WitnessProcess(tmp_path_factory.mktemp("witness")) as running:
        yield running


@pytest.mark.long
def test_b51_a_witness_cosigns_what_goes_on_and_nothing_else(
    place: Place, witness: WitnessProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--witness", witness.key, witness.url)
    assert place.seal(*asked) == 69
    assert "it does not know the register, or this key of it: give it the line" in capsys.readouterr().err
    witness.add((place.register / "verifier_key").read_text().strip())
    assert place.seal(*asked) == 0
    for _ in range(3):  # sizes 2, 3, 4
        place.write_more()
        assert place.seal(*asked) == 0
    place.write_more()
    assert place.seal() == 0  # size 5, without the witness
    place.write_more()
    assert place.seal(*asked) == 0  # size 6: it has seen 4
    cosigned = [path.stem for path in sorted((place.register / "notes").glob("*.cosignatures"))]
    assert [int(each) for each in cosigned] == [1, 2, 3, 4, 6]
    assert (place.register / "note").read_text().count("\n— ") == 2
    for offset in (0, 4, 13):
        assert place.check(offset, "--witness", witness.key, "--origin", ORIGIN) == 0
    shutil.rmtree(place.register / "notes")  # a register that forgot what it signed is told by the witness
    lines = (place.register / "seals.jsonl").read_text().splitlines(keepends=True)
    (place.register / "seals.jsonl").write_text("".join(lines[::-1]))
    capsys.readouterr()
    assert place.seal(*asked) == 69
    assert "status 422: it has seen other seals" in capsys.readouterr().err
    (place.register / "notes" / f"{6:020d}.note").unlink()
    (place.register / "seals.jsonl").write_text("".join(lines))
    assert place.seal(*asked) == 0
    assert place.check(4, "--witness", witness.key) == 0


@pytest.mark.long
def test_b51_a_history_that_was_cut_gets_no_cosignature(
    place: Place, witness: WitnessProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its owner has the key, and makes a register anew."""
    options = ("--register", place.register, "--origin", "example.org/cut", "--witness", witness.key, witness.url)
    seal(place.data, place.keys, *options)
    witness.add((place.register / "verifier_key").read_text().strip())
    shutil.copytree(place.data, place.home / "kept")
    for _ in range(2):
        place.write_more()
        assert seal(place.data, place.keys, *options) == 0
    for path in (place.data, place.register):
        shutil.rmtree(path)
    (place.home / "kept").rename(place.data)
    capsys.readouterr()
    assert seal(place.data, place.keys, *options) == 69
    assert "it has seen 3 seals, and the register has 1: seals were removed" in capsys.readouterr().err


@pytest.mark.long
def test_b51_a_witness_that_is_away_or_another_one_costs_no_seal(
    place: Place, witness: WitnessProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--register", place.register, "--origin", "example.org/away")
    away = ("--witness", witness.key, f"http://127.0.0.1:{free_port()}")
    assert seal(place.data, place.keys, *options, *away) == 69
    assert "no answer" in capsys.readouterr().err
    witness.add((place.register / "verifier_key").read_text().strip())
    other = HandWitness()
    assert seal(place.data, place.keys, *options, "--witness", other.key, witness.url) == 69
    assert "no signature is one of the key that was given for it" in capsys.readouterr().err
    assert not list((place.register / "notes").glob("*.cosignatures"))
    assert seal(place.data, place.keys, *options, *away, "--witness", witness.key, witness.url) == 69
    assert "no answer" in capsys.readouterr().err
    assert place.check(1, "--witness", witness.key) == 0
    assert json.loads((place.home / "proof.json").read_text())["register"]["note"].count("\n— ") == 2
