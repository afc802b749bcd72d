"""Asks a witness to cosign a note (C2SP tlog-witness, add-checkpoint).

A witness remembers the newest note of a register that it has seen. It signs the next one if a consistency proof shows
that the previous note's seals are its beginning, so an owner who changes or removes seals gets no more signatures.
"""

import base64

from rewindmq.engine.keeping.seals.merkle import consistency
from rewindmq.engine.keeping.seals.outside import NotGiven, asked, reason_in
from rewindmq.engine.keeping.seals.proof_verifier import Unsound, VerifierKey, parsed_note, signed_by
from rewindmq.engine.keeping.seals.register import Registrar
from rewindmq.engine.keeping.seals.seal import BadSeal

_UNKNOWN = "it does not know the register, or this key of it: give it the line in the file verifier_key"
_REASONS = {
    403: _UNKNOWN,
    404: _UNKNOWN,
    422: "it has seen other seals: the register was changed, or is not the one it knows",
}


def cosign(register: Registrar, size: int, witness: VerifierKey, url: str) -> None:
    """Ask a witness for its cosignature of a note, and add it, unless the note has it.

    Raises NotGiven, BadFile, BadSeal."""
    try:
        if witness in signed_by(register.note(size), [witness]):
            return
    except Unsound as error:
        raise BadSeal(f"{register.directory}: {error}") from None
    seen = max((each for each in register.sizes if each < size), default=0)  # a guess; if wrong, it answers the number
    status, headers, body = _add_checkpoint(register, size, seen, url)
    if status == 409 and headers.get("content-type", "").startswith("text/x.tlog.size"):
        said = body.decode(errors="replace").strip()
        seen = int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else -1
        if seen > size:
            raise NotGiven(f"{url}: it has seen {seen} seals, and the register has {size}: seals were removed")
        if seen >= 0:
            status, headers, body = _add_checkpoint(register, size, seen, url)
    if status != 200:
        raise NotGiven(f"{url}: status {status}: {_REASONS.get(status) or reason_in(body)}")
    register.add_cosignature(size, _cosignature(register, size, witness, body, url))


def _add_checkpoint(register: Registrar, size: int, seen: int, url: str) -> tuple[int, dict[str, str], bytes]:
    note = register.note(size)
    hashes = [base64.b64encode(each).decode() for each in consistency(register.leaves[:size], seen)]
    content = "\n".join([f"old {seen}", *hashes, "", note.with_signatures(note.signatures)])
    status, headers, body = asked(f"{url.rstrip('/')}/add-checkpoint", content.encode(), "text/plain")
    return status, dict(headers), body


def _cosignature(register: Registrar, size: int, witness: VerifierKey, body: bytes, url: str) -> tuple[str, bytes]:
    """Return the checked cosignature in an answer. Raises NotGiven, BadFile, BadSeal."""
    note = register.note(size)
    try:
        answer = parsed_note(note.with_signatures([]) + body.decode())
        if witness not in signed_by(answer, [witness]):
            raise ValueError("no signature is one of the key that was given for it")
    except (ValueError, Unsound) as error:
        raise NotGiven(f"{url}: its answer is not a cosignature: {error}") from None
    return next(each for each in answer.signatures if (each[0], each[1][:4]) == (witness.name, witness.id))
