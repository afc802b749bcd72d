"""Checks a proof of `rewindmq prove` with just this file and Python 3.9 or newer: no broker, log or other package.

    python3 -I proof_verifier.py proof.json --public-key seal.pub
    python3 -I proof_verifier.py proof.json --public-key seal.pub --witness VKEY --timestamp-roots tsa.pem

It exits with 0 if the proof is valid, 1 if it is not, 64 for a wrong argument, 65 for an unusable file, 69 if the
program openssl is missing. The format is proof.schema.json. Each step leads from the record to the next one:

    record --salt--> entry                  the record with commitments instead of fields that may be withheld
    entry --path--> root in the seal        a tree of RFC 6962 over a stretch of records; the seal is signed (Ed25519)
    seal --register.path--> root in the note         a tree over all seals; the note is signed (C2SP signed-note)
    note --> witnesses                      cosignatures (C2SP tlog-cosignature, v1) of the witnesses that you name
    note --> time stamp                     RFC 3161, over the note with only the register's signature

The last three exist if the proof has a register. openssl checks a time stamp, if roots are given. RewindMQ itself also
uses this file. An unknown field, or one that `prove` writes differently, makes a proof invalid.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import json
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

HOLDS, UNSOUND, USAGE, DATA, UNAVAILABLE = 0, 1, 64, 65, 69
MOST_BYTES = 1 << 28  # of a proof: a record has at most 128 MiB
MOST_NOTE_BYTES = 1 << 16
SIGNATURE, COSIGNATURE = 1, 4  # kinds of keys in signed notes: Ed25519, and Ed25519 with a time


class Unsound(Exception):
    """The proof is not valid; the text says why."""


class Unusable(Exception):
    """A file or an argument cannot be used. `code`: the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# -- Ed25519, RFC 8032 -------------------------------------------------------------------------------------------------

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT_OF_MINUS_1 = pow(2, (_P - 1) // 4, _P)
_BASE = (4 * pow(5, _P - 2, _P) % _P).to_bytes(32, "little")
Point = tuple[int, int, int, int]  # x = X / Z, y = Y / Z, x * y = T / Z


def _point(encoded: bytes) -> Point | None:
    y = int.from_bytes(encoded, "little")
    odd, y = y >> 255, y & ((1 << 255) - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT_OF_MINUS_1 % _P
    if (x * x - square) % _P or (x == 0 and odd):
        return None
    x = x if x & 1 == odd else _P - x
    return x, y, 1, x * y % _P


def _sum(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c = 2 * one[3] * other[3] * _D % _P
    d = 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(count: int, point: Point) -> Point:
    found = (0, 1, 1, 0)
    while count:
        if count & 1:
            found = _sum(found, point)
        point = _sum(point, point)
        count >>= 1
    return found


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return True if this is the Ed25519 signature of the message by this key, which has 32 bytes."""
    if len(signature) != 64 or len(public) != 32:
        return False
    key, commitment, base = _point(public), _point(signature[:32]), _point(_BASE)
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or base is None or scalar >= _ORDER:
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % _ORDER
    left, right = _times(scalar, base), _sum(commitment, _times(challenge, key))
    return all((left[axis] * right[2] - right[axis] * left[2]) % _P == 0 for axis in (0, 1))


# -- Merkle trees, RFC 6962 --------------------------------------------------------------------------------------------


def leaf_hash(content: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\x00" + content).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node above two others."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_of(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """Return the root to which a path leads.

    Raises ValueError when the path cannot be one of a tree of this size."""
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf number {index}")
    found, at, last = leaf, index, size - 1
    for other in path:
        if last == 0:
            raise ValueError("the proof is too long")
        if at & 1 or at == last:
            found = node_hash(other, found)
            while not at & 1 and at:
                at >>= 1
                last >>= 1
        else:
            found = node_hash(found, other)
        at >>= 1
        last >>= 1
    if last:
        raise ValueError("the proof is too short")
    return found


# -- commitments -------------------------------------------------------------------------------------------------------

# A sealed record has a commitment instead of a body, for example. The hashed entry gives the place of each commitment,
# so that shown bytes cannot be passed off as a commitment, nor a commitment as shown bytes:
#
#     number of commitments, 1 byte | for each: form, 1 | its place in the record, 4 | size of the field, 4 | the record
#
# The numbers are big-endian. A field of bytes or text is preceded by the length of its commitment, in Avro's form.
FORMS = ("bytes", "text", "value")  # text: in hexadecimal digits; value: not a field, but the whole value
PREFIXES = (b"\x40", b"\x80\x01", b"")
TEXT = 1
PLACE = struct.Struct(">BII")


def committed(salt: bytes, content: bytes) -> bytes:
    """Return the commitment to a field."""
    return hashlib.sha256(salt + content).digest()


def sealed_field(form: int, commitment: bytes) -> bytes:
    """Return the bytes of a commitment in a sealed record, without the length before them."""
    return commitment.hex().encode() if form == TEXT else commitment


def _entry(given: Any) -> tuple[bytes, bytes, list[int]]:
    """Return the entry of a record in a proof, the record, and the sizes of the fields that the proof does not show.

    The record has a commitment instead of such a field. Raises ValueError, TypeError."""
    places, withheld, was_shown = [], [], False
    sealed, record = bytearray(), bytearray()
    for part in given:
        if type(part) is dict and "shown" in part:
            _check_fields(part, {"shown": str})
            content = _decoded(part["shown"])
            if was_shown or not content:
                raise ValueError("the record is split in another way than it was sealed")
            was_shown = True
            sealed += content
            record += content
            continue
        is_open = type(part) is dict and "withheld" in part
        kinds = {"withheld": str, "salt": str} if is_open else {"commitment": str, "size": int}
        _check_fields(part, {"form": str, **kinds})
        form, was_shown = FORMS.index(part["form"]), False
        content = _decoded(part["withheld"]) if is_open else b""
        [commitment] = _hashes([part["salt" if is_open else "commitment"]])
        if is_open:
            commitment = committed(commitment, content)
        size = len(content) if is_open else part["size"]
        if not 0 <= size < 1 << 32:
            raise ValueError("the size of a withheld field is no size")
        places.append(PLACE.pack(form, len(sealed) + len(PREFIXES[form]), size))
        field = PREFIXES[form] + sealed_field(form, commitment)
        sealed += field
        record += (_length(size, form) + content) if is_open else field
        withheld += [] if is_open else [size]
    return bytes([len(places)]) + b"".join(places) + sealed, bytes(record), withheld


def _length(size: int, form: int) -> bytes:
    """Return the length of a field as Avro writes it; empty for a whole value."""
    found, rest = bytearray(), size << 1
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest]) if PREFIXES[form] else b""


# -- signed notes, C2SP ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VerifierKey:
    """The public key of a register (SIGNATURE) or of a witness (COSIGNATURE), with the name under which it signs."""

    name: str
    kind: int
    public: bytes

    @property
    def id(self) -> bytes:
        """Return the four bytes before each of its signatures."""
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(bytes([self.kind]) + self.public).decode()}"


def witness_key(text: str) -> VerifierKey:
    """Return the key of a witness in `NAME+HEX+BASE64`. Raises ValueError."""
    name, _, rest = text.partition("+")
    material = base64.b64decode(rest.partition("+")[2], validate=True)
    found = VerifierKey(name, COSIGNATURE, material[1:])
    if not is_name(name) or len(material) != 33 or str(found) != text:
        raise ValueError("it is not NAME+HEX+BASE64")
    return found


def is_name(name: str) -> bool:
    """Return True if a register or a witness can have this name, which must fit in one line of a note and in a key."""
    return 0 < len(name) <= 200 and "+" not in name and name.isprintable() and not any(map(str.isspace, name))


@dataclass(frozen=True)
class Note:
    """A checkpoint of C2SP: the size and the root of the tree over all seals in the register named `origin`.

    `signatures`: (name, key id and signature) in their order. `text`: what is signed."""

    origin: str
    size: int
    root: bytes
    text: str
    signatures: list[tuple[str, bytes]]

    def with_signatures(self, signatures: Iterable[tuple[str, bytes]]) -> str:
        """Return the note as it is stored and sent, with these signatures."""
        lines = [f"— {name} {base64.b64encode(signature).decode()}\n" for name, signature in signatures]
        return f"{self.text}\n{''.join(lines)}"


def parsed_note(given: str) -> Note:
    """Read a note. Its signatures are not checked. Raises ValueError."""
    if len(given) > MOST_NOTE_BYTES:
        raise ValueError("the note is too long")
    text, blank, rest = given.rpartition("\n\n")
    given.encode()  # half a surrogate pair also raises ValueError
    if not blank or any(each < " " and each != "\n" for each in given) or not rest.endswith("\n"):
        raise ValueError("not a signed note")
    lines = text.split("\n")
    if len(lines) < 3 or not all(lines) or not re.fullmatch(r"0|[1-9][0-9]{0,18}", lines[1], re.ASCII):
        raise ValueError("not a checkpoint")
    signatures = []
    for line in rest[:-1].split("\n"):
        dash, name, encoded = [*line.split(" "), "", ""][:3]
        if dash != "—" or line.count(" ") != 2 or not is_name(name):
            raise ValueError("a line of the note is not a signature")
        signatures.append((name, _decoded(encoded)))
    return Note(lines[0], int(lines[1]), _decoded(lines[2], 32), text + "\n", signatures)


def signed_by(note: Note, keys: Iterable[VerifierKey]) -> dict[VerifierKey, int | None]:
    """Return the keys that signed a note, each with the time in its cosignature, in seconds.

    Signatures of other keys are left out, as the format demands. Raises Unsound for a known key's wrong signature."""
    found: dict[VerifierKey, int | None] = {}
    known = {(key.name, key.id): key for key in keys}
    for name, signature in note.signatures:
        if (key := known.get((name, signature[:4]))) is None:
            continue
        message, at, seconds = note.text.encode(), 4, None
        if key.kind == COSIGNATURE:
            seconds, at = int.from_bytes(signature[4:12], "big"), 12
            message = f"cosignature/v1\ntime {seconds}\n".encode() + message
        if not is_signed(key.public, signature[at:], message):
            raise Unsound(f"the note's signature of {name} is wrong")
        found[key] = seconds
    return found


def stamped_bytes(note: Note, key: VerifierKey) -> bytes:
    """Return the bytes that a time stamp covers: the note without witnesses, which may sign later."""
    own = [(name, signature) for name, signature in note.signatures if (name, signature[:4]) == (key.name, key.id)]
    return note.with_signatures(own[:1]).encode()


# -- time stamps, RFC 3161 ---------------------------------------------------------------------------------------------

_SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
_TIME_STAMP = bytes.fromhex("2a864886f70d0109100104")
_SHA256 = bytes.fromhex("608648016503040201")


@dataclass(frozen=True)
class Stamp:
    """The content of a time-stamp authority's answer. `time`: ISO 8601, UTC. `nonce`: None if it has none."""

    imprint: bytes
    time: str
    seconds: int
    nonce: int | None


def _values(content: bytes) -> list[tuple[int, bytes]]:
    """Return (tag, content) of each value in DER. Raises ValueError."""
    found, at = [], 0
    while at < len(content):
        tag, length = content[at], content[at + 1] if at + 1 < len(content) else 128
        at += 2
        if length >= 128:
            count = length - 128
            length = int.from_bytes(content[at : at + count], "big")
            if not 0 < count <= 4 or length < 128 or length >> 8 * (count - 1) == 0:
                raise ValueError("not DER")
            at += count
        if at + length > len(content):
            raise ValueError("not DER: it ends early")
        found.append((tag, content[at : at + length]))
        at += length
    return found


def _inside(value: tuple[int, bytes], tag: int) -> list[tuple[int, bytes]]:
    if value[0] != tag:
        raise ValueError("not a time stamp")
    return _values(value[1])


def parsed_stamp(answer: bytes) -> Stamp:
    """Read the answer of an authority. Its signature is not checked. Raises ValueError, also if it refused."""
    try:
        [whole] = _values(answer)
        status, *token = _inside(whole, 0x30)
        code = int.from_bytes(_inside(status, 0x30)[0][1], "big")
        if code <= 1:
            [container] = token
            kind, signed = _inside(container, 0x30)
            [signed_data] = _inside(signed, 0xA0)
            _, _, encapsulated, *_ = _inside(signed_data, 0x30)
            content_kind, content = _inside(encapsulated, 0x30)
            [octets] = _inside(content, 0xA0)
            [info] = _inside(octets, 0x04)
            _, _, imprint, _, moment, *rest = _inside(info, 0x30)
            algorithm, digest = _inside(imprint, 0x30)
            kinds = kind[1], content_kind[1], _inside(algorithm, 0x30)[0][1]
    except (IndexError, ValueError):
        raise ValueError("not an answer to a request for a time stamp") from None
    if code > 1:
        raise ValueError(f"the authority refused: status {code}")
    found = re.fullmatch(rb"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(\.\d{1,9})?Z", moment[1])
    if kinds != (_SIGNED_DATA, _TIME_STAMP, _SHA256) or found is None:
        raise ValueError("not a time stamp over SHA-256")
    year, month, day, hour, minute, second, fraction = (each.decode() if each else "" for each in found.groups())
    said = f"{year}-{month}-{day}T{hour}:{minute}:{second}"
    seconds = calendar.timegm(time.strptime(said, "%Y-%m-%dT%H:%M:%S"))
    nonce = next((int.from_bytes(content, "big") for tag, content in rest if tag == 0x02), None)
    return Stamp(digest[1], f"{said}{fraction}+00:00", seconds, nonce)


def check_stamp(stamped: bytes, answer: bytes, roots: Path | None) -> Stamp:
    """Check that a time stamp is about these bytes, and by an authority under the roots, if they are given.

    A certificate of the authority counts if it was valid at the stamp's time. Raises Unsound, Unusable, OSError."""
    try:
        stamp = parsed_stamp(answer)
    except ValueError as error:
        raise Unsound(f"the time stamp: {error}") from None
    if stamp.imprint != hashlib.sha256(stamped).digest():
        raise Unsound("the time stamp is about something else than the note")
    if roots is None:
        return stamp
    _read(roots, MOST_BYTES)
    with tempfile.TemporaryDirectory() as home:
        note, reply = Path(home, "note"), Path(home, "stamp.tsr")
        note.write_bytes(stamped)
        reply.write_bytes(answer)
        command = ["openssl", "ts", "-verify", "-data", str(note), "-in", str(reply), "-CAfile", str(roots)]
        try:
            done = subprocess.run([*command, "-attime", str(stamp.seconds)], capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            raise Unusable(UNAVAILABLE, "openssl, which checks time stamps, does not run: install it") from None
    if done.returncode:
        reason = re.sub(r"(?s).*?error:|\n.*", "", done.stderr.decode(errors="replace"))
        raise Unsound(f"the time stamp is not one of an authority under {roots}: {reason}")
    return stamp


# -- proofs ------------------------------------------------------------------------------------------------------------

_SEAL_TEXTS, _SEAL_NUMBERS = "log partition schema root chain prints previous", "base_offset next_offset time_ms"
_SEAL: dict[str, type] = {**dict.fromkeys(_SEAL_TEXTS.split(), str), **dict.fromkeys(_SEAL_NUMBERS.split(), int)}
FORMAT = 1  # of a proof: its first field
_PROOF: dict[str, type] = {"format": int, "offset": int, "record": list, "path": list, "seal": dict}
_PROOF.update(dict.fromkeys(("partition", "key", "signature"), str))
_REGISTER = {"entry": int, "path": list, "note": str}


@dataclass(frozen=True)
class Trust:
    """The things that a proof's reader trusts. `keys`: public keys of the sealer, 32 bytes each. `roots`: a PEM file.

    If `origin`, `witnesses` or `roots` are given, the proof must satisfy them."""

    keys: Sequence[bytes]
    origin: str | None = None
    witnesses: Sequence[VerifierKey] = ()
    roots: Path | None = None


@dataclass
class Proven:
    """A checked proof. `key`: SHA-256 of the public key, as hexadecimal digits.

    `withheld`: sizes of the fields that the proof does not show; the record has commitments instead.
    `origin`, `entry`, `size`: of the register, if the proof has one. `witnesses`: names of the trusted witnesses, and
    the seconds at which each saw the register. `stamp`: its time, which counts if `stamp_is_checked`."""

    partition: str
    offset: int
    record: bytes
    withheld: list[int]
    seal: dict[str, Any]
    digest: str
    key: str
    origin: str | None = None
    entry: int | None = None
    size: int | None = None
    witnesses: list[tuple[str, int]] = field(default_factory=list)
    stamp: str | None = None
    stamp_is_checked: bool = False


def statement(seal: Mapping[str, Any]) -> bytes:
    """Return a seal as canonical JSON: the bytes that are signed, and that are a leaf of the register's tree."""
    return json.dumps(seal, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def verify(given: Any, trust: Trust) -> Proven:
    """Check a proof, which is decoded JSON. Raises Unsound, Unusable, OSError (for `roots`)."""
    if type(given) is dict and type(given.get("format")) is int and given["format"] != FORMAT:
        raise Unusable(DATA, f"the proof: format {given['format']}, this program reads format {FORMAT}")
    try:
        _check_fields(given, _PROOF, {"register"})
        proven = _of_seal(given, trust)
        if "register" in given:
            _check_fields(given["register"], _REGISTER, {"time_stamp"})
            _add_register(proven, given["register"], trust)
    except (RecursionError, TypeError, ValueError) as error:
        raise Unsound(f"the proof makes no sense: {error}") from None
    if proven.origin is None and (trust.origin is not None or trust.witnesses or trust.roots is not None):
        raise Unsound("the proof has no note: make it with --register")
    if trust.origin not in (None, proven.origin):
        raise Unsound(f"the note is of the register {proven.origin}, and not of {trust.origin}")
    if trust.roots is not None and proven.stamp is None:
        raise Unsound("the proof has no time stamp")
    return proven


def _check_fields(given: Any, fields: Mapping[str, type], optional: Iterable[str] = ()) -> None:
    if type(given) is not dict:
        raise ValueError("an object is missing")
    for name, kind in fields.items():
        if type(given.get(name)) is not kind:
            raise ValueError(f"{name} is missing, or of another type")
    if unknown := given.keys() - {*fields, *optional}:
        raise ValueError(f"it has an unknown field, {min(unknown)!r}")


def _of_seal(given: Mapping[str, Any], trust: Trust) -> Proven:
    """Check the way from the record to the signature of the seal. Raises Unsound, ValueError."""
    seal = given["seal"]
    _check_fields(seal, _SEAL)
    if not 0 <= seal["base_offset"] < seal["next_offset"]:
        raise ValueError("the seal has no offsets")
    signed = statement(seal)
    keys = {hashlib.sha256(key).hexdigest(): key for key in trust.keys}
    public = keys.get(given["key"], b"")
    if not is_signed(public, _decoded(given["signature"]), signed):
        wanted = ", ".join(f"{each[:16]}..." for each in keys)
        raise Unsound(f"the proof: the signature is not one of the key {wanted}")
    entry, record, withheld = _entry(given["record"])
    size = seal["next_offset"] - seal["base_offset"]
    root = root_of(leaf_hash(entry), given["offset"] - seal["base_offset"], size, _hashes(given["path"]))
    if given["partition"] != seal["partition"] or root.hex() != seal["root"]:
        raise Unsound("the proof does not lead to the sealed root: the record is another one")
    digest = hashlib.sha256(signed).hexdigest()
    return Proven(seal["partition"], given["offset"], record, withheld, dict(seal), digest, given["key"])


def _add_register(proven: Proven, given: Mapping[str, Any], trust: Trust) -> None:
    """Check the way from the seal to the note, witnesses and time stamp. Raises Unsound, Unusable, ValueError."""
    note = parsed_note(given["note"])
    own = [VerifierKey(note.origin, SIGNATURE, key) for key in trust.keys]
    signed = signed_by(note, [*own, *trust.witnesses])
    signer = next((key for key in own if key in signed), None)
    if signer is None:
        raise Unsound("the note is not signed by the key")
    if root_of(leaf_hash(statement(proven.seal)), given["entry"], note.size, _hashes(given["path"])) != note.root:
        raise Unsound("the proof does not lead to the root in the note: the seal is another one")
    proven.origin, proven.entry, proven.size = note.origin, given["entry"], note.size
    for witness in trust.witnesses:
        if (seconds := signed.get(witness)) is None:
            raise Unsound(f"{witness.name} has not cosigned the note")
        proven.witnesses.append((witness.name, seconds))
    if "time_stamp" in given:
        stamp = check_stamp(stamped_bytes(note, signer), _decoded(given["time_stamp"]), trust.roots)
        proven.stamp, proven.stamp_is_checked = stamp.time, trust.roots is not None


def _decoded(text: str, length: int | None = None) -> bytes:
    """Return the bytes in base64, which must be in canonical form. Raises ValueError, TypeError."""
    found = base64.b64decode(text, validate=True)
    if base64.b64encode(found).decode() != text or length not in (None, len(found)):
        raise ValueError("its base64 is unusual")
    return found


def _hashes(given: Sequence[str]) -> list[bytes]:
    found = [bytes.fromhex(each) for each in given]
    if [each.hex() for each in found] != given or any(len(each) != 32 for each in found):
        raise ValueError("it has a hash that is none")
    return found


def parsed_proof(content: bytes) -> Any:
    """Return the JSON of a proof, in which no name comes twice. Raises ValueError, RecursionError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name comes twice")
        return dict(pairs)

    return json.loads(content.decode(), object_pairs_hook=once)


# -- the program -------------------------------------------------------------------------------------------------------

_PEM = re.compile(rb"\s*-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*")
_ED25519_KEY = bytes.fromhex("302a300506032b6570032100")


def public_key(path: Path) -> bytes:
    """Return the 32 bytes of an Ed25519 public key in PEM. Raises Unusable, OSError."""
    found = _PEM.fullmatch(_read(path, MOST_NOTE_BYTES))
    try:
        der = base64.b64decode(b"".join(found.group(1).split()), validate=True) if found else b""
    except ValueError:
        der = b""
    if len(der) != 44 or not der.startswith(_ED25519_KEY):
        raise Unusable(DATA, f"{path}: not an Ed25519 public key in PEM (openssl pkey -pubout)")
    return der[12:]


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Unusable(DATA, f"{path}: longer than {most} bytes")
    return content


def utc(seconds: float) -> str:
    """Return a time in ISO 8601, UTC; the number itself if it is outside the calendar."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds} seconds"


def sentences(proven: Proven) -> list[str]:
    """Return the facts that a proof shows, and those that it does not show, one per line."""
    sealed_at, of_key = utc(proven.seal["time_ms"] // 1000), f"with the key {proven.key[:16]}..."
    lines = [f"record: at offset {proven.offset} of {proven.partition}, {len(proven.record)} bytes"]
    lines += [f"withheld: {size} bytes of the record; a commitment is in their place" for size in proven.withheld]
    lines.append(f"sealed: at {sealed_at} by the sealer's own clock, {of_key}")
    if proven.origin is None:
        return [*lines, "register: none; only the owner of the key says when the seal was made"]
    lines.append(f"register: seal number {proven.entry} of the {proven.size} in {proven.origin}")
    lines += [f"witness: {name} saw these {proven.size} seals at {utc(seconds)}" for name, seconds in proven.witnesses]
    if not proven.witnesses:
        lines.append("witness: not checked, as no witness was named")
    if proven.stamp is None:
        return [*lines, "time stamp: none"]
    if proven.stamp_is_checked:
        return [*lines, f"time stamp: an authority under the roots had the note at {proven.stamp}"]
    return [*lines, f"time stamp: not checked, as no roots were given; it says {proven.stamp}"]


def _parsed_arguments(arguments: Sequence[str]) -> Any:
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise Unusable(USAGE, message)

    parser = Parser(prog="proof_verifier.py", description="Check a proof of a record in a sealed history.")
    parser.add_argument("proof", type=Path, help="the proof: a file of `rewindmq prove`")
    parser.add_argument("--public-key", type=Path, action="append", required=True, help="the sealer's key, in PEM")
    parser.add_argument("--origin", help="the name that the register must have")
    parser.add_argument("--witness", type=witness_key, action="append", default=[], help="key of one that must cosign")
    parser.add_argument("--timestamp-roots", type=Path, metavar="FILE", help="PEM of what a time stamp must lead to")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the bytes of the record there")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser.parse_args(arguments)


def _run(arguments: Sequence[str]) -> None:
    given = _parsed_arguments(arguments)
    keys = [public_key(path) for path in given.public_key]
    try:
        proof = parsed_proof(_read(given.proof, MOST_BYTES))
    except (RecursionError, ValueError) as error:
        raise Unusable(DATA, f"{given.proof}: not JSON: {error}") from None
    proven = verify(proof, Trust(keys, given.origin, given.witness, given.timestamp_roots))
    if given.record is not None:
        given.record.write_bytes(proven.record)
    if given.format == "json":
        shown = {**vars(proven), "record": base64.b64encode(proven.record).decode()}
        print(json.dumps(shown, indent=1, allow_nan=False))
        return
    text = "".join(chr(each) if 32 <= each < 127 else "." for each in proven.record[:400])
    print("\n".join(map(printable, ["The proof holds.", *sentences(proven), f"bytes: {text}"])))


def printable(text: str) -> str:
    """Return the text without a terminal's control characters."""
    return "".join(each if each.isprintable() else "?" for each in text)


def main(arguments: Sequence[str]) -> int:
    """Check a proof for a person or a program. Returns the exit code."""
    try:
        _run(arguments)
    except Unsound as error:
        print(printable(f"The proof does not hold: {error}"), file=sys.stderr)
        return UNSOUND
    except Unusable as error:
        print(printable(f"Error: {error}"), file=sys.stderr)
        return error.code
    except OSError as error:
        print(printable(f"Error: {error.filename}: {error.strerror}"), file=sys.stderr)
        return DATA
    return HOLDS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
