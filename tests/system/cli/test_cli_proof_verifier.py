"""A proof is checked by one file and Python alone, and any change of the proof is refused (B-51)."""

import base64
import copy
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rewindmq.engine.cli.main import run
from rewindmq.engine.keeping.seals import proof_verifier as verifier
from rewindmq.engine.keeping.seals.proof_verifier import Proven, Trust, Unsound, Unusable, VerifierKey
from rewindmq.engine.keeping.seals.register import opened
from rewindmq.engine.keeping.seals.seal import fingerprint
from tests.support.authority import TimeStampAuthority
from tests.support.examples import examples
from tests.support.needs import needed
from tests.support.registers import ORIGIN, HandWitness, SealKeys, seal, write
from tests.support.running import ROOT

pytestmark = pytest.mark.long

needed("openssl")
FILE = ROOT / "engine" / "keeping" / "seals" / "proof_verifier.py"
SCHEMA = json.loads((ROOT / "docs" / "proof.schema.json").read_text())
SEEN_SECONDS = 1_790_000_000
Way = tuple[str | int, ...]


@dataclass(frozen=True)
class Case:
    """A proof of the message at offset 4 of 9, in the second of three notes, with all that a proof can have."""

    home: Path
    proof: dict[str, Any]
    trust: Trust
    proven: Proven
    options: tuple[str, ...]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    home = tmp_path_factory.mktemp("proof")
    data, register, keys, witness = home / "data", home / "register", SealKeys(home), HandWitness()
    with TimeStampAuthority(home) as authority:
        for begin in (0, 3, 6):
            write(data, range(begin, begin + 3))
            stamp = ("--timestamp", authority.url, "--timestamp-roots", authority.roots) if begin == 3 else ()
            assert seal(data, keys, "--register", register, "--origin", ORIGIN, *stamp) == 0
    with opened(register, None, keys.key, {fingerprint(keys.key.public_key()): keys.key.public_key()}) as registrar:
        registrar.add_cosignature(2, witness.cosignature(registrar.note(2), SEEN_SECONDS))
    shown = subprocess.run(
        [sys.executable, "-m", "rewindmq", "prove", "queues-0:4", "--data", data, "--register", register],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    proof = json.loads(shown.stdout)
    (home / "proof.json").write_bytes(shown.stdout)
    trust = Trust([verifier.public_key(keys.public)], ORIGIN, [witness.key], authority.roots)
    named = ("--origin", ORIGIN, "--witness", str(witness.key), "--timestamp-roots", str(authority.roots))
    options = ("--public-key", str(keys.public), *named)
    return Case(home, proof, trust, verifier.verify(proof, trust), options)


def alone(case: Case, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """The file, copied to a directory of its own, run by a Python that has nothing else."""
    away = case.home / "away"
    away.mkdir(exist_ok=True)
    shutil.copy(FILE, away / "check.py")
    command = [sys.executable, "-I", "-S", "-W", "error", "check.py", *map(str, arguments)]
    return subprocess.run(command, cwd=away, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


def test_b51_one_file_and_python_check_a_proof(case: Case) -> None:
    done = alone(case, case.home / "proof.json", *case.options, "--record", case.home / "record")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "The proof holds."
    assert lines[1].startswith("record: at offset 4 of queues-0, ")
    assert lines[3] == f"register: seal number 1 of the 2 in {ORIGIN}"
    assert lines[4] == "witness: witness.example/hand saw these 2 seals at 2026-09-21T14:13:20+00:00"
    assert lines[5].startswith("time stamp: an authority under the roots had the note at 20")
    assert "order 4" in lines[6]
    record = (case.home / "record").read_bytes()
    [shown, body] = case.proof["record"]
    assert record == case.proven.record
    assert record == base64.b64decode(shown["shown"]) + b"\x0e" + base64.b64decode(body["withheld"])
    assert b"order 4" in record
    done = alone(case, case.home / "proof.json", *case.options, "--format", "json")
    shown = json.loads(done.stdout)
    assert (shown["offset"], shown["entry"], shown["size"], shown["stamp_is_checked"]) == (4, 1, 2, True)
    assert shown["witnesses"] == [["witness.example/hand", SEEN_SECONDS]]


def test_b51_it_says_what_nobody_has_checked(case: Case, tmp_path: Path) -> None:
    done = alone(case, case.home / "proof.json", *case.options[:2])
    assert done.returncode == 0
    assert "witness: not checked, as no witness was named" in done.stdout
    assert "time stamp: not checked, as no roots were given; it says 20" in done.stdout
    bare = {name: value for name, value in case.proof.items() if name != "register"}
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    done = alone(case, tmp_path / "bare.json", *case.options[:2])
    assert (done.returncode, "register: none" in done.stdout) == (0, True)
    for options in (case.options[2:4], case.options[4:6], case.options[6:8]):
        done = alone(case, tmp_path / "bare.json", *case.options[:2], *options)
        assert (done.returncode, done.stdout) == (1, "")
        assert "the proof has no note: make it with --register" in done.stderr


def test_b51_arguments_and_files_that_are_wrong_are_one_line(case: Case, tmp_path: Path) -> None:
    proof, (_, key, *_) = case.home / "proof.json", case.options
    (tmp_path / "none.json").write_text('{"a": 1, "a": 1}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "list.json").write_text("[]")
    for arguments, code, said in (
        ((), 64, "required"),
        ((proof,), 64, "--public-key"),
        ((proof, "--public-key", key, "--witness", "w+1+2"), 64, "--witness"),
        ((proof, "--public-key", proof), 65, "not an Ed25519 public key"),
        ((proof, "--public-key", tmp_path / "missing"), 65, "No such file"),
        ((tmp_path / "missing", "--public-key", key), 65, "No such file"),
        ((tmp_path, "--public-key", key), 65, "Is a directory"),
        ((tmp_path / "none.json", "--public-key", key), 65, "a name comes twice"),
        ((tmp_path / "deep.json", "--public-key", key), 65, "not JSON"),
        ((key, "--public-key", key), 65, "not JSON"),
        ((tmp_path / "list.json", "--public-key", key), 1, "an object is missing"),
        ((proof, "--public-key", key, "--timestamp-roots", tmp_path / "missing"), 65, "No such file"),
        ((proof, "--public-key", key, "--timestamp-roots", key), 1, "the time stamp is not one of an authority under"),
        ((proof, "--public-key", key, "--origin", "example.org/others"), 1, f"is of the register {ORIGIN}"),
    ):
        done = alone(case, *arguments)
        assert (done.returncode, done.stdout) == (code, ""), (arguments, done.stderr)
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_b51_keys_that_signed_nothing_are_refused(case: Case, tmp_path: Path) -> None:
    other, stranger = SealKeys(tmp_path), HandWitness()
    done = alone(case, case.home / "proof.json", "--public-key", other.public)
    assert (done.returncode, "the signature is not one of the key" in done.stderr) == (1, True)
    both = alone(case, case.home / "proof.json", "--public-key", other.public, *case.options)
    assert both.returncode == 0
    for key in (stranger.key, VerifierKey(case.trust.witnesses[0].name, 4, stranger.key.public)):
        done = alone(case, case.home / "proof.json", *case.options, "--witness", key)
        assert (done.returncode, f"{key.name} has not cosigned the note" in done.stderr) == (1, True)


def test_b51_without_openssl_a_time_stamp_is_not_passed_over(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(case.home))
    with pytest.raises(verifier.Unusable, match="openssl, which checks time stamps, does not run") as raised:
        verifier.verify(case.proof, case.trust)
    assert raised.value.code == 69


def ways(content: Any, way: Way = ()) -> list[Way]:
    """The ways to all values in JSON."""
    found: list[Way] = [way] if way else []
    if isinstance(content, dict):
        found += [each for name, value in content.items() for each in ways(value, (*way, name))]
    if isinstance(content, list):
        found += [each for number, value in enumerate(content) for each in ways(value, (*way, number))]
    return found


@st.composite
def changes(draw: st.DrawFn, proof: dict[str, Any]) -> tuple[Way, Any]:
    """A proof with one change, and where it is."""
    changed = copy.deepcopy(proof)
    way = draw(st.sampled_from(ways(proof)))
    parent = changed
    for step in way[:-1]:
        parent = parent[step]  # type: ignore[index]
    parent_of: Any = parent
    value, last = parent_of[way[-1]], way[-1]
    how = draw(st.sampled_from(["replace", "drop", "within", "within", "within"]))
    if how == "drop":
        del parent_of[last]
    elif how == "replace":
        anything = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just({}), st.just([]))
        parent_of[last] = draw(anything.filter(lambda new: type(new) is not type(value) or new != value))
    elif isinstance(value, str):
        at = draw(st.integers(0, len(value) - 1))
        piece = draw(st.sampled_from(["", "0", "A", "=", "\n", " ", "é", value[at] * 2, value[at].swapcase()]))
        parent_of[last] = value[:at] + piece + value[at + 1 :]
    elif isinstance(value, int):
        parent_of[last] = value + draw(st.integers(-(2**70), 2**70).filter(bool))
    elif isinstance(value, dict):
        value[draw(st.text().filter(lambda name: name not in (*value, "time_stamp")))] = 1
    else:
        value.insert(draw(st.integers(0, len(value))), draw(st.sampled_from([0, "", "00" * 32])))
    return way, changed


@settings(max_examples=examples(400))
@given(st.data())
def test_b51_any_change_of_a_proof_is_refused(case: Case, data: st.DataObject) -> None:
    """A stamp has bytes that its signature does not cover: then what is shown stays as it was."""
    way, changed = data.draw(changes(case.proof))
    if changed == case.proof:
        return
    try:
        proven = verifier.verify(changed, case.trust)
    except Unsound:
        return
    except Unusable:
        assert way == ("format",)
        return
    assert way == ("register", "time_stamp")
    assert proven == case.proven


def with_another_letter(text: str) -> str:
    """A text that differs in one letter or digit in its middle."""
    place = next(at for at in range(len(text) // 2, len(text)) if text[at].isalnum())
    return f"{text[:place]}{'b' if text[place] == 'a' else 'a'}{text[place + 1 :]}"


def test_b51_each_field_that_is_changed_is_refused_by_the_file_alone(case: Case, tmp_path: Path) -> None:
    proof = tmp_path / "proof.json"
    ways_to_change: tuple[Way, ...] = (
        ("record", 0, "shown"),
        ("record", 1, "withheld"),
        ("record", 1, "salt"),
        ("seal", "root"),
        ("register", "note"),
        ("register", "entry"),
        ("register", "time_stamp"),
    )
    for way in ways_to_change:
        changed = copy.deepcopy(case.proof)
        parent: Any = changed
        for step in way[:-1]:
            parent = parent[step]
        value = parent[way[-1]]
        parent[way[-1]] = value + 1 if isinstance(value, int) else with_another_letter(value)
        proof.write_text(json.dumps(changed))
        done = alone(case, proof, *case.options)
        assert (done.returncode, done.stdout) == (1, ""), way
        assert done.stderr.startswith("The proof does not hold: ")


def test_b51_a_stamp_or_a_note_of_another_register_is_refused(case: Case, tmp_path: Path) -> None:
    """Each of them is sound by itself."""
    other, keys = tmp_path / "other", SealKeys(tmp_path)
    shutil.copy(case.options[1].replace(".pub", ".key"), keys.private)
    write(tmp_path / "data", range(20, 25))
    with TimeStampAuthority(tmp_path) as authority:
        options = ("--register", other, "--origin", ORIGIN, "--timestamp", authority.url)
        assert seal(tmp_path / "data", keys, *options) == 0
    note = (other / "note").read_text()
    stamp = base64.b64encode(next((other / "notes").glob("*.tsr")).read_bytes()).decode()
    for field, value, said in (
        ("note", note, "does not lead to the root in the note|no leaf number"),
        ("time_stamp", stamp, "about something else than the note"),
    ):
        with pytest.raises(Unsound, match=said):
            verifier.verify(case.proof | {"register": case.proof["register"] | {field: value}}, Trust(case.trust.keys))


def test_b51_proofs_have_the_published_schema(case: Case) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    check = Draft202012Validator(SCHEMA)
    check.validate(case.proof)
    check.validate({name: value for name, value in case.proof.items() if name != "register"})
    closed = [case.proof["record"][0], {"form": "bytes", "commitment": "00" * 32, "size": 7}]
    check.validate(case.proof | {"record": closed})
    assert not check.is_valid(case.proof | {"record": [closed[1] | case.proof["record"][1]]})
    for way in ways(case.proof):
        if isinstance(way[-1], str) and way != ("register",) and way != ("register", "time_stamp"):
            changed = copy.deepcopy(case.proof)
            parent: Any = changed
            for step in way[:-1]:
                parent = parent[step]
            del parent[way[-1]]
            assert not check.is_valid(changed), way


def test_b51_the_command_shows_the_event_and_asks_for_the_same(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check_proof", str(case.home / "proof.json"), *case.options]
    assert run(command) == 0
    said = capsys.readouterr().out
    assert "what: Published routing_key=q" in said
    assert "body: order 4" in said
    assert f"register: seal number 1 of the 2 in {ORIGIN}" in said
    assert run([*command, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)["register"]
    assert (shown["origin"], shown["entry"], shown["size"], shown["time_stamp_is_checked"]) == (ORIGIN, 1, 2, True)
    for options, code, said in (
        (("--witness", str(HandWitness().key)), 1, "has not cosigned"),
        (("--witness", "x"), 64, "is not the key of a witness"),
        (("--timestamp-roots", str(case.home / "missing")), 65, "No such file"),
        (("--origin", "example.org/others"), 1, "is of the register"),
    ):
        assert run([*command, *options]) == code
        error = capsys.readouterr().err
        assert (said in error, error.count("\n")) == (True, 1), error
