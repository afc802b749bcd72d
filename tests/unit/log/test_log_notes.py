"""Signed notes, signatures and time stamps as the verifier of proofs reads them: nothing else passes (B-51)."""

import ast
import base64
import sys

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.keeping.seals import proof_verifier as verifier
from rewindmq.engine.keeping.seals.proof_verifier import VerifierKey, is_signed, parsed_note
from tests.support.examples import examples
from tests.support.registers import ORIGIN
from tests.support.running import ROOT

FILE = ROOT / "engine" / "keeping" / "seals" / "proof_verifier.py"


def test_b51_the_file_is_one_that_older_pythons_read() -> None:
    tree = ast.parse(FILE.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert imported <= sys.stdlib_module_names


@settings(max_examples=examples(60))
@given(st.binary(max_size=80), st.integers(0, 95), st.integers(0, 255))
def test_b51_signatures_are_judged_as_by_openssl(message: bytes, at: int, bits: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(31) + bytes([bits]))
    public, signature = key.public_key().public_bytes_raw(), key.sign(message)
    assert is_signed(public, signature, message)
    changed = bytearray(public + signature)
    changed[at] ^= bits
    other, forged = bytes(changed[:32]), bytes(changed[32:])
    try:
        Ed25519PublicKey.from_public_bytes(other).verify(forged, message)
        judged = True
    except (InvalidSignature, ValueError):
        judged = False
    assert is_signed(other, forged, message) is judged


def test_b51_signatures_that_can_be_changed_are_refused() -> None:
    """RFC 8032, section 5.1.7: a scalar that is not below the order; and points that are none."""
    key = Ed25519PrivateKey.generate()
    public, signature = key.public_key().public_bytes_raw(), key.sign(b"x")
    scalar = int.from_bytes(signature[32:], "little") + verifier._ORDER
    assert not is_signed(public, signature[:32] + scalar.to_bytes(32, "little"), b"x")
    for point in (b"\xff" * 32, (verifier._P + 1).to_bytes(32, "little"), (2).to_bytes(32, "little"), b""):
        assert not is_signed(point, signature, b"x")
        assert not is_signed(public, point + signature[32:], b"x")


def test_b51_notes_are_read_and_signed_as_c2sp_has_it() -> None:
    """The example and the key in c2sp.org/signed-note."""
    public = base64.b64decode("AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")[1:]
    key = VerifierKey("example.com/foo", 1, public)
    assert str(key) == "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
    signature = base64.b64decode(
        "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM="
    )
    assert signature[:4] == key.id
    assert is_signed(public, signature[4:], b"This is an example message.\n")


GOOD = f"{ORIGIN}\n3\n{base64.b64encode(bytes(32)).decode()}\n\n— {ORIGIN} {base64.b64encode(bytes(68)).decode()}\n"


@pytest.mark.parametrize(
    "note",
    [
        "",
        GOOD.rstrip("\n"),
        GOOD.replace("\n\n", "\n"),
        GOOD.replace("\n3\n", "\n03\n"),
        GOOD.replace("\n3\n", "\n-3\n"),
        GOOD.replace("\n3\n", "\n٣\n"),
        GOOD.replace("\n3\n", "\n3\t\n"),
        GOOD.replace("—", "-"),
        GOOD.replace(f"— {ORIGIN}", "— two words"),
        GOOD.replace(f"— {ORIGIN}", "— a+b"),
        GOOD.replace("=\n\n", "=\n\n\n"),
        GOOD.replace(f"{ORIGIN}\n3", "\n3"),
        GOOD + "more\n",
        GOOD + "\ud800\n",
        GOOD * 1_000,
    ],
)
def test_b51_what_is_no_note_is_refused(note: str) -> None:
    parsed_note(GOOD)
    with pytest.raises(ValueError, match=r"note|signature|checkpoint|surrogates|base64|padding"):
        parsed_note(note)


@settings(max_examples=examples(300))
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda rest: b"\x30\x82" + rest)))
def test_b51_bytes_that_are_no_stamp_are_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"time stamp|the authority refused"):
        verifier.parsed_stamp(answer)
