"""Asks a time-stamp authority for a stamp of a note (RFC 3161 over HTTP).

The stamp is checked here in the same way as by readers: with proof_verifier.py, and with openssl if roots are given.
"""

import hashlib
import secrets
from pathlib import Path

from rewindmq.engine.keeping.seals.outside import NotGiven, asked, reason_in
from rewindmq.engine.keeping.seals.proof_verifier import Unsound, check_stamp
from rewindmq.engine.keeping.seals.register import Registrar

_QUERY, _REPLY = "application/timestamp-query", "application/timestamp-reply"
# TimeStampReq in DER, 69 bytes: version 1, SHA-256 of 32 bytes, a nonce of 8 bytes, and a request for certificates.
_BEFORE_DIGEST = bytes.fromhex("3043 020101 3031 300d 0609608648016503040201 0500 0420")
_BEFORE_NONCE, _AFTER_NONCE = bytes.fromhex("0208"), bytes.fromhex("0101ff")


def stamp(register: Registrar, size: int, url: str, roots: Path | None) -> None:
    """Ask an authority for a time stamp of a note, and store it, unless the note has one.

    `roots`: a file of certificates in PEM, to which the authority's must lead. Raises NotGiven, BadFile, BadSeal,
    Unusable, OSError."""
    if register.time_stamp(size):
        return
    stamped, nonce = register.signed_note(size), secrets.randbits(62) | 1 << 62  # 8 bytes, and positive
    status, headers, body = asked(url, request(stamped, nonce), _QUERY)
    if status != 200:
        raise NotGiven(f"{url}: status {status}: {reason_in(body)}")
    if headers.get("content-type", "").partition(";")[0].strip() != _REPLY:
        raise NotGiven(f"{url}: not a time-stamp authority: its answer is not {_REPLY}")
    try:
        found = check_stamp(stamped, body, roots)
    except Unsound as error:
        raise NotGiven(f"{url}: {error}") from None
    if found.nonce != nonce:
        raise NotGiven(f"{url}: the time stamp answers another request: its nonce differs")
    register.add_time_stamp(size, body)


def request(stamped: bytes, nonce: int) -> bytes:
    """Return the request for a time stamp of these bytes. `nonce`: 63 bits, the highest one set."""
    digest = hashlib.sha256(stamped).digest()
    return _BEFORE_DIGEST + digest + _BEFORE_NONCE + nonce.to_bytes(8, "big") + _AFTER_NONCE
