"""Commitments: a seal covers a record without the fields that a copy may withhold (schemas/private_fields.py).

    entry = number of commitments, 1 byte | for each: form, 1 | position in the record, 4 | size of the field, 4
          | the record with the commitment instead of the field
    leaf = SHA-256(0x00 | entry)                                     merkle.py; numbers are big-endian
    commitment = SHA-256(salt | field as stored)                     32 bytes; in a text, 64 hexadecimal digits
    salt = SHA-256(secret | number of the field in its record, 1 | offset, 8)

- `secret` is 32 random bytes of one seal. Only the proof of a record shows its salt, which reveals nothing about the
  secret or another salt, because SHA-256 over one block that begins with an unknown key is a pseudorandom function.
- The record stays a value of its schema, which any Avro tool reads; the length of the field is that of the commitment.
  A value that is not one of our events becomes the commitment of the whole value. An offset without a record is empty.
- The opening of a seal is only for its owner: the secret, the hash chain, and a print of each record. The chain and the
  prints would confirm a guess of a short body, so the seal has hashes of them that need the secret:

    seal.chain = SHA-256(SHA-256(secret | 255 | next offset, 8) | chain)
    print = the first 4 bytes of SHA-256(SHA-256(secret | 254 | 0, 8) | record)        fingerprints.py
    opening = secret, 32 | chain, 32 | prints                        stored beside the seal
"""

import base64
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from rewindmq.engine.keeping.seals.fingerprints import WIDTH
from rewindmq.engine.keeping.seals.proof_verifier import FORMS, PLACE, PREFIXES, committed, sealed_field
from rewindmq.schemas.private_fields import WithheldFields

SECRET_BYTES = 32
HEAD_BYTES = 2 * SECRET_BYTES  # of an opening, before the prints
_PRINTS, _CHAIN = 254, 255
_DERIVED = struct.Struct(">BQ")


@dataclass(frozen=True, slots=True)
class Opening:
    """The keys and values that open the commitments of a seal. `chain`: the hash chain at the end of its stretch."""

    secret: bytes
    chain: bytes
    prints: bytes

    @property
    def content(self) -> bytes:
        """Return the stored form."""
        return self.secret + self.chain + self.prints


def opened(content: bytes, chain: str, next_offset: int) -> Opening | None:
    """Parse a stored opening, if it is that of a seal with this `chain` and end. Its prints are not checked."""
    found = Opening(content[:SECRET_BYTES], content[SECRET_BYTES:HEAD_BYTES], content[HEAD_BYTES:])
    whole = len(content) >= HEAD_BYTES
    return found if whole and committed_chain(found.secret, next_offset, found.chain) == chain else None


def committed_chain(secret: bytes, next_offset: int, chain: bytes) -> str:
    """Return the commitment to the hash chain before an offset, as in a seal."""
    return committed(_derived(secret, _CHAIN, next_offset), chain).hex()


def _derived(secret: bytes, purpose: int, number: int) -> bytes:
    return sha256(secret + _DERIVED.pack(purpose, number)).digest()


class Commitments:
    """The maker of the leaves and the prints of one stretch's records."""

    def __init__(self, secret: bytes, fields: WithheldFields, value_at: int) -> None:
        """Use this secret. `value_at`: the position of the value in a sealed record."""
        self._fields = fields
        self._value_at = value_at
        self._salts_key = secret + b"\0"  # of field number 0: no event has two
        self._prints_key = _derived(secret, _PRINTS, 0)

    def leaves(self, offset: int, records: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the leaf in the Merkle tree of each of these successive records, beginning at `offset`."""
        find, value_at = self._fields.find, self._value_at
        for at, record in enumerate(records, offset):
            field = find(record, value_at) if record else None
            if field is None:
                yield sha256(b"\0\0" + record).digest()
                continue
            form, start, begin, end = field
            prefix = PREFIXES[form]
            commitment = committed(self.salt(at), record[begin:end])
            head = b"\0\1" + PLACE.pack(form, start + len(prefix), end - begin) + record[:start] + prefix
            yield sha256(head + sealed_field(form, commitment) + record[end:]).digest()

    def print_of(self, record: bytes) -> bytes:
        """Return the print of a record, which is the same at any offset."""
        return sha256(self._prints_key + record).digest()[:WIDTH]

    def salt(self, offset: int) -> bytes:
        """Return the salt of the field in the record at an offset."""
        return sha256(self._salts_key + offset.to_bytes(8, "big")).digest()

    def parts(self, offset: int, record: bytes, with_body: bool) -> Iterator[dict[str, str | int]]:
        """Yield the parts of a record in a proof: the shown bytes, and the opened commitment.

        `with_body` False: the commitment remains closed."""
        field = self._fields.find(record, self._value_at) if record else None
        form, start, begin, end = field or (None, len(record), len(record), len(record))
        if start:
            yield {"shown": _base64(record[:start])}
        if form is not None and with_body:
            yield {"form": FORMS[form], "withheld": _base64(record[begin:end]), "salt": self.salt(offset).hex()}
        elif form is not None:
            commitment = committed(self.salt(offset), record[begin:end])
            yield {"form": FORMS[form], "commitment": commitment.hex(), "size": end - begin}
        if end < len(record):
            yield {"shown": _base64(record[end:])}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
