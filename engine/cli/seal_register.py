"""The register of `rewindmq seal`: its options, and what other people are asked to sign."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.cli.exits import DATA, USAGE, CliError
from rewindmq.engine.keeping.seals import sealer as sealing
from rewindmq.engine.keeping.seals import time_stamps
from rewindmq.engine.keeping.seals.outside import NotGiven, is_address
from rewindmq.engine.keeping.seals.proof_verifier import Unusable, VerifierKey
from rewindmq.engine.keeping.seals.proof_verifier import witness_key as parsed_key
from rewindmq.engine.keeping.seals.register import Registrar, opened
from rewindmq.engine.keeping.seals.seal import Keys, StoredSeal, fingerprint
from rewindmq.engine.keeping.seals.sealer import Sealable
from rewindmq.engine.keeping.seals.witnesses import cosign


@dataclass(frozen=True, slots=True)
class Outside:
    """The options of `seal` about the register. `authority`: the address of a time-stamp authority."""

    directory: Path | None
    origin: str | None
    authority: str | None
    roots: Path | None
    witnesses: Sequence[tuple[VerifierKey, str]]

    @classmethod
    def of(
        cls,
        directory: Path | None,
        origin: str | None,
        authority: str | None,
        timestamp_roots: Path | None,
        witnesses: Sequence[tuple[str, str]],
    ) -> "Outside":
        """Check the options of `seal`. Raises CliError."""
        if directory is None and (origin is not None or authority is not None or witnesses):
            raise CliError(USAGE, "--origin, --timestamp and --witness are for a register: give --register DIR")
        if timestamp_roots is not None and authority is None:
            raise CliError(USAGE, "--timestamp-roots checks a time stamp: give --timestamp URL")
        for url in (*([] if authority is None else [authority]), *(url for _, url in witnesses)):
            if not is_address(url):
                raise CliError(USAGE, f"{url!r} is not an address, such as https://tsa.example.org")
        if timestamp_roots is not None and not timestamp_roots.is_file():
            raise CliError(DATA, f"{timestamp_roots}: no file with certificates is here")
        named = [(witness_key(key), url) for key, url in witnesses]
        return cls(directory, origin, authority, timestamp_roots, named)


def witness_key(text: str) -> VerifierKey:
    """Return the key of a witness. Raises CliError."""
    try:
        return parsed_key(text)
    except ValueError:
        raise CliError(
            USAGE, f"{text!r} is not the key of a witness: write NAME+HEX+BASE64, as the witness shows it"
        ) from None


class Book:
    """The register while seals are made. Without a register it does nothing."""

    def __init__(self, register: Registrar | None, outside: Outside, keys: Keys) -> None:
        self._register = register
        self._outside = outside
        self._keys = keys

    @property
    def seals(self) -> list[StoredSeal]:
        """The seals that are in the register."""
        return [] if self._register is None else list(self._register.seals)

    def add(self, partition: Sealable, new: Sequence[StoredSeal]) -> None:
        """Add the seals of a partition that one of our keys signed. `new`: those that this run has made."""
        if self._register is not None:
            known = self._register.digests
            found = [each for each in (*partition.seals()[0], *new) if each.seal.digest not in known]
            self._register.add(sealing.sound(partition, found, self._keys))

    def sign(self) -> list[str]:
        """Sign a note over all seals, and ask others for theirs. Returns what is lacking, and why."""
        size = 0 if self._register is None else self._register.sign()
        if self._register is None or not size:
            return []
        lacking = []
        if self._outside.authority is not None:
            try:
                time_stamps.stamp(self._register, size, self._outside.authority, self._outside.roots)
            except (NotGiven, Unusable) as error:
                lacking.append(str(error))
        for witness, url in self._outside.witnesses:
            try:
                cosign(self._register, size, witness, url)
            except NotGiven as error:
                lacking.append(str(error))
        return lacking


@contextmanager
def registered(outside: Outside, key: "Ed25519PrivateKey", older: Keys) -> Iterator[Book]:
    """Yield the register of a sealer, open to be written. Raises BadFile, BadSeal."""
    keys = {fingerprint(key.public_key()): key.public_key(), **older}
    if outside.directory is None:
        yield Book(None, outside, keys)
        return
    with opened(outside.directory, outside.origin, key, keys) as register:
        yield Book(register, outside, keys)
