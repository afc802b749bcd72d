"""Seals: signed statements about stretches of a log, which can be checked without a broker.

    {"format": 1, "seal": {log, partition, base_offset, next_offset, schema, root, chain, prints, previous, time_ms},
     "key", "signature"}

- `root` is the Merkle root over the records base_offset .. next_offset - 1 (merkle.py), with commitments instead of
  bodies (commitments.py). `chain` is a commitment to the partition's hash chain after the last of them, `previous` the
  SHA-256 of the previous seal in the same partition. Stretches are contiguous from offset 0, so one seal covers the
  whole history of its partition up to its end: the owner of a copy can tell if any byte was changed or removed.
- `schema` is the newest schema known to the sealer, for whom a record of a later one was not an event but foreign.
- The signature is Ed25519 over the seal as canonical JSON; `key` is the SHA-256 of the public key, to tell keys apart.
- `prints` is the SHA-256 of four bytes of each record's keyed hash, which locate a change (fingerprints.py).
- The opening of a seal, with its secret, the hash chain and the prints, is stored elsewhere. A seal is one line of
  JSON, of some 750 bytes, and seals alone do not let anybody check a guess of a body.
- A seal is never changed, and never removed. in_files.py (`log` "embedded", files) and in_topic.py ("kafka", a topic)
  define the place of seals and the bytes of a record. sealer.py makes and checks them.
- A proof is the record, the salt of its commitment, its path to the root, and the seal. To check it, a reader needs
  only the public key and proof_verifier.py. With a register (register.py) the proof also leads from the seal to a note
  that others have signed.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from rewindmq.engine.keeping.seals.proof_verifier import Proven, Trust, Unsound, VerifierKey, statement, verify
from rewindmq.engine.log.contract import LogError
from rewindmq.schemas.formats import formatted, values_in


class BadSeal(Exception):
    """A seal or a proof is not valid; the text says which, and why."""


class BadFile(LogError):
    """A given file is not a usable key, or has no usable copies of seals."""


Keys = Mapping[str, Ed25519PublicKey]  # by fingerprint


@dataclass(frozen=True, slots=True)
class Seal:
    """A statement about a stretch of a partition.

    `digest`: the next seal names this one by it. Offsets form a range: the end is exclusive."""

    log: str
    partition: str
    base_offset: int
    next_offset: int
    schema: str
    root: str
    chain: str
    prints: str
    previous: str
    time_ms: int

    @property
    def statement(self) -> bytes:
        """Return the seal as canonical JSON, the bytes that are signed."""
        return statement({name: getattr(self, name) for name in self.__slots__})

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the statement, by which the next seal names this one."""
        return hashlib.sha256(self.statement).hexdigest()

    @property
    def offsets(self) -> str:
        """Return the range of offsets, for people; its end is inclusive."""
        return f"offsets {self.base_offset} to {self.next_offset - 1}"


@dataclass(frozen=True, slots=True)
class StoredSeal:
    """A seal as found in the log.

    `where`: its place, for people; `at`: its place, for the code that stored it. Not signed: `opening_at`, the offset
    at which its opening may be, in Kafka; `opening`, in a copy with secrets, its opening without the prints."""

    seal: Seal
    key: str
    signature: bytes
    where: str
    at: int | None = None
    opening_at: int | None = None
    opening: bytes = b""

    @property
    def public(self) -> "StoredSeal":
        """Return the part that anybody may read, without a way to the opening."""
        return replace(self, opening_at=None, opening=b"")

    @property
    def content(self) -> dict[str, Any]:
        """Return the stored form, before it becomes JSON."""
        found: dict[str, Any] = {
            "seal": json.loads(self.seal.statement),
            "key": self.key,
            "signature": base64.b64encode(self.signature).decode(),
        }
        if self.opening_at is not None:
            found["opening_at"] = self.opening_at
        if self.opening:
            found["opening"] = base64.b64encode(self.opening).decode()
        return found

    @property
    def line(self) -> str:
        """Return the stored form, a line of JSON."""
        return formatted(self.content)


# -- keys --------------------------------------------------------------------------------------------------------------


def private_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a file.

    Raises BadFile."""
    try:
        key = load_pem_private_key(_read(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadFile(f"{path}: not a private key in PEM without a password: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadFile(f"{path}: not an Ed25519 key: make one with 'openssl genpkey -algorithm ed25519'")
    return key


def public_keys(paths: Iterable[Path]) -> Keys:
    """Return the public keys in these files.

    Raises BadFile."""
    return keys_in({str(path): _read(path) for path in paths})


def keys_in(texts: Mapping[str, bytes]) -> Keys:
    """Return the public keys in these texts in PEM, which are given by their origin.

    Raises BadFile."""
    found = {}
    for where, text in texts.items():
        try:
            key = load_pem_public_key(text)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BadFile(f"{where}: not a public key in PEM: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise BadFile(f"{where}: not an Ed25519 key")
        found[fingerprint(key)] = key
    return found


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the name of a key, the SHA-256 of its public half."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}") from None


# -- stored form -------------------------------------------------------------------------------------------------------


def signed(seal: Seal, key: Ed25519PrivateKey) -> StoredSeal:
    """Sign a seal."""
    return StoredSeal(seal, fingerprint(key.public_key()), key.sign(seal.statement), "a new seal")


def parsed_line(line: str | bytes, where: str, at: int | None = None) -> StoredSeal:
    """Return the seal in a line of JSON.

    Raises BadSeal."""
    try:
        content = values_in(line, where, BadSeal)
        seal = Seal(**content["seal"])
        kinds = {name: type(getattr(seal, name)) for name in Seal.__slots__}
        if any(kinds[name] is not kind for name, kind in Seal.__annotations__.items()):
            raise TypeError
        if not 0 <= seal.base_offset < seal.next_offset:
            raise ValueError
        bytes.fromhex(seal.chain)
        (seal.log + seal.partition).encode()  # half a surrogate pair can't even be shown
        signature, opening_at = base64.b64decode(content["signature"], validate=True), content.get("opening_at")
        opening = base64.b64decode(content.get("opening", ""), validate=True)
        opening_at = opening_at if type(opening_at) is int else None
        return StoredSeal(seal, str(content["key"]), signature, where, at, opening_at, opening)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise BadSeal(f"{where}: not a seal") from None


def verify_signature(stored: StoredSeal, keys: Keys) -> None:
    """Check the signature of a seal.

    Raises BadSeal."""
    key = keys.get(stored.key)
    try:
        if key is not None:
            key.verify(stored.signature, stored.seal.statement)
            return
    except InvalidSignature:
        pass
    wanted = ", ".join(f"{each[:16]}..." for each in keys)
    raise BadSeal(f"{stored.where}: the signature is not one of the key {wanted}")


def read_copies(path: Path) -> list[StoredSeal]:
    """Read copies of seals: a file with a seal a line, or all such files in a directory.

    Raises BadFile."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            lines = _read(file).splitlines()
            found += [parsed_line(line, f"{file}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
        except BadSeal as bad:
            raise BadFile(str(bad)) from None
    return found


# -- proofs ------------------------------------------------------------------------------------------------------------


def check_proof(
    given: Any,
    keys: Keys,
    origin: str | None = None,
    witnesses: Sequence[VerifierKey] = (),
    roots: Path | None = None,
) -> Proven:
    """Check a proof, as proof_verifier.py does.

    Raises BadSeal, Unusable, OSError (for `roots`)."""
    trust = Trust([key.public_bytes_raw() for key in keys.values()], origin, witnesses, roots)
    try:
        return verify(given, trust)
    except Unsound as error:
        raise BadSeal(str(error)) from None
