"""Makes seals, checks them, and proves events, for a log in files and for one in Kafka alike.

    partitions = segmented(data_dir)  or  in_topics(KafkaLogReader(...))         in_files.py, in_topic.py
    for new in seal(partition, private, now_ms): ...
    for checked in check(partitions, keys, copies): ...

A partition is cut into stretches, each with a seal whose opening has the hash chain at its end. So every stretch can be
checked separately, from the chain at the end of the previous one: `plan` checks the seals among themselves, without the
log, and `examine` checks one stretch of the log against its seal (Spark examines many at the same time).

If an opening is lost, the records cannot be compared with the seal's root. The chain of a later seal still proves them,
if that was made before the loss; it is computed from the last earlier seal with an opening.

Two sealers at the same time make two seals of one stretch. Both are true, and both are checked.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.keeping.seals.commitments import (
    HEAD_BYTES,
    SECRET_BYTES,
    Commitments,
    Opening,
    committed_chain,
    opened,
)
from rewindmq.engine.keeping.seals.fingerprints import located
from rewindmq.engine.keeping.seals.merkle import Tree, proof
from rewindmq.engine.keeping.seals.proof_verifier import FORMAT
from rewindmq.engine.keeping.seals.register import Register
from rewindmq.engine.keeping.seals.seal import BadSeal, Keys, Seal, StoredSeal, fingerprint, signed, verify_signature
from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.schemas.private_fields import WithheldFields
from rewindmq.schemas.registry import envelope_fingerprint
from rewindmq.schemas.shapes import UnknownSchema

STRETCH_RECORDS = 65_536  # a stretch is sealed when it has this many, or at the end of the log


@dataclass(frozen=True, slots=True)
class Run:
    """Successive records in their sealed form before any commitment, and the hash chain after the last of them."""

    first_offset: int
    records: Sequence[bytes]
    chain: bytes

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.records)


@dataclass(frozen=True, slots=True)
class Harm:
    """A statement that is false, and its place: the first affected offset.

    `records`: True if the history itself is affected, not only the opening of a seal."""

    partition: str
    offset: int | None
    what: str
    records: bool = True

    def __str__(self) -> str:
        where = self.partition if self.offset is None else f"{self.partition} offset {self.offset}"
        return f"{where}: {self.what}"


class Sealable(Protocol):
    """A partition of a log, with its seals."""

    log: str  # Seal.log
    name: str
    value_at: int  # the position of the value in a sealed record

    @property
    def beginning(self) -> tuple[int, bytes]:
        """Return the offset of the first existing record, and the hash chain before it.

        Raises CorruptLog, LogError."""

    @property
    def next_offset(self) -> int: ...

    def walk(self, start: int, end: int | None, chain: bytes) -> Iterator[Run]:
        """Yield the records from offset `start` up to `end` (None: the end of the log).

        `chain` is the hash chain before them. Raises CorruptLog, LogError."""

    def seals(self) -> tuple[list[StoredSeal], list[Harm]]:
        """Return the seals, in the order in which they were made, if known; and entries that are not seals."""

    def opening(self, stored: StoredSeal) -> bytes:
        """Return the stored opening of a seal; empty if it is gone. The seal tells whether it is its own."""

    def make_durable(self) -> None:
        """Make all records durable that `walk` has yielded."""

    def store(self, sealed: StoredSeal, opening: bytes) -> StoredSeal:
        """Add a seal and its opening durably, and return it as stored.

        Raises LogError."""


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch to examine.

    `chain`: the hash chain before its first record, at the beginning of the history. `before`: the previous seal, whose
    opening has the chain. Neither: the chain is not known."""

    stored: StoredSeal
    chain: bytes | None
    before: StoredSeal | None


@dataclass(frozen=True, slots=True)
class Checked:
    """A valid seal, or the harm that was found.

    `unchecked`: the part of its stretch that can no longer be checked. `beyond`: the seal is a parent's, and extends
    beyond the offset at which this history branched, so it does not count here."""

    seal: Seal | None
    harm: Harm | None
    unchecked: str = ""
    beyond: int | None = None


# -- sealing -----------------------------------------------------------------------------------------------------------


def seal(
    partition: Sealable,
    key: Ed25519PrivateKey,
    now_ms: int,
    older: Keys | None = None,
    copies: Sequence[StoredSeal] = (),
) -> Iterator[StoredSeal]:
    """Seal the unsealed records, and yield the new seals.

    It is safe beside a running broker. `older`: former keys. `copies`: seals that must still exist: a missing one was
    removed, and the remaining log must not be signed again. Raises CorruptLog, LogError, BadSeal."""
    trusted = {fingerprint(key.public_key()): key.public_key(), **(older or {})}
    stored, _ = partition.seals()
    before = sound(partition, stored, trusted)
    if stored and not before:
        raise BadSeal(f"{partition.name}: its seals are of another key ({stored[-1].key[:16]}...): name that one also")
    there = {each.seal.digest for each in stored}
    for copy in copies:
        if copy.seal.partition == partition.name and copy.seal.digest not in there:
            raise BadSeal(f"{partition.name}: the seal of {copy.seal.offsets} is gone; there is a copy, {copy.where}")
    last = max(before, key=lambda each: each.seal.next_offset, default=None)
    start, begun = partition.beginning
    offset, chain, previous = start, begun, ""
    if last is not None:
        offset, previous = last.seal.next_offset, last.seal.digest
        if offset < start:  # the records after the last seal were trimmed
            offset = start
        elif offset <= partition.next_offset:
            chain = _chain_behind(partition, last)[1]
    end = partition.next_offset
    if end < offset:
        raise BadSeal(f"{partition.name}: the log ends at offset {end}, and was sealed up to {offset - 1}")
    for stretch, reached in _stretches(partition, offset, chain):
        partition.make_durable()
        secret, prints, next_offset = stretch.secret, bytes(stretch.prints), stretch.next_offset
        new = signed(
            Seal(
                partition.log,
                partition.name,
                stretch.base_offset,
                next_offset,
                envelope_fingerprint(),
                stretch.tree.root().hex(),
                committed_chain(secret, next_offset, reached),
                hashlib.sha256(prints).hexdigest(),
                previous,
                now_ms,
            ),
            key,
        )
        previous = new.seal.digest
        yield partition.store(new, Opening(secret, reached, prints).content)


def sound(partition: Sealable, stored: Iterable[StoredSeal], keys: Keys | None) -> list[StoredSeal]:
    """Return the seals of the partition that are signed by one of the keys. `keys` None: by anybody."""
    return [each for each in stored if _wrong(partition, each, keys) is None]


class _Stretch:
    """The tree and the prints of successive records from `base_offset` on."""

    def __init__(self, partition: Sealable, base_offset: int, secret: bytes, schema: str) -> None:
        """Begin a stretch. Raises UnknownSchema."""
        self.base_offset = base_offset
        self.secret = secret
        self.tree = Tree()
        self.prints = bytearray()
        self._commitments = Commitments(secret, WithheldFields(schema), partition.value_at)

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.tree.size

    def add(self, run: Run) -> None:
        """Add the next records."""
        for leaf in self._commitments.leaves(self.next_offset, run.records):
            self.tree.add(leaf)
        self.prints += b"".join(map(self._commitments.print_of, run.records))

    def located(self, sealed: bytes) -> tuple[int, str]:
        """Return the first offset at which the records differ from these prints, and the apparent change."""
        return located(sealed, bytes(self.prints), self.base_offset, self._commitments.print_of(b""))


def _stretches(partition: Sealable, offset: int, chain: bytes) -> Iterator[tuple[_Stretch, bytes]]:
    """Yield each stretch from an offset on, under a new secret, and the hash chain at its end."""
    stretch: _Stretch | None = None
    for run in partition.walk(offset, None, chain):
        if stretch is None:
            stretch = _Stretch(partition, run.first_offset, secrets.token_bytes(SECRET_BYTES), envelope_fingerprint())
        stretch.add(run)
        chain = run.chain
        if stretch.tree.size >= STRETCH_RECORDS:
            yield stretch, chain
            stretch = None
    if stretch is not None:
        yield stretch, chain


def _opening(partition: Sealable, stored: StoredSeal) -> Opening | None:
    """Return the opening of a seal, stored beside it or in a copy of it; None if there is none."""
    seal = stored.seal
    found = (opened(content, seal.chain, seal.next_offset) for content in (partition.opening(stored), stored.opening))
    return next((each for each in found if each is not None), None)


def with_secret(partition: Sealable, stored: StoredSeal) -> StoredSeal:
    """Return a copy of a seal with its opening, if that exists, but without the prints."""
    return replace(stored, opening=partition.opening(stored)[:HEAD_BYTES])


def _chain_behind(partition: Sealable, stored: StoredSeal) -> tuple[int, bytes]:
    """Return the hash chain at the end of a sealed stretch, and the offset from which it was computed.

    This is the end itself if the seal's opening exists, otherwise the end of an earlier seal, or the beginning. Raises
    CorruptLog, LogError."""
    offset, chain = partition.beginning
    known: dict[str, StoredSeal] = {}
    at: StoredSeal | None = stored
    while at is not None and at.seal.next_offset > offset:
        if (opening := _opening(partition, at)) is not None:
            offset, chain = at.seal.next_offset, opening.chain
            break
        known = known or {each.seal.digest: each for each in partition.seals()[0]}
        at = known.get(at.seal.previous)
    walked_from = offset
    if offset < stored.seal.next_offset:
        for run in partition.walk(offset, stored.seal.next_offset, chain):
            chain = run.chain
    return walked_from, chain


# -- checking ----------------------------------------------------------------------------------------------------------


def check(partitions: Iterable[Sealable], keys: Keys, copies: Sequence[StoredSeal] = ()) -> Iterator[Checked]:
    """Yield every valid seal, and every harm.

    Records after the last seal are not yet sealed. A partition with records but no seals was never sealed, or its seals
    are gone. Raises LogError."""
    partitions = list(partitions)
    yield from (Checked(None, harm) for harm in astray(partitions, copies))
    for partition in partitions:
        steps, harms = plan(partition, keys, copies)
        for step in steps:
            harm = examine(partition, step)
            seal = step.stored.seal
            yield Checked(None, harm) if harm else Checked(seal, None, unchecked(partition.beginning[0], seal))
        yield from (Checked(None, harm) for harm in harms)


def check_parent(
    partitions: Iterable[Sealable], keys: Keys, copies: Sequence[StoredSeal], branched_at: Mapping[str, int]
) -> Iterator[Checked]:
    """Yield the seals of the history from which a fork branched, as `check` does.

    A seal that ends at the branch or before it must be valid, because both histories share its records. `branched_at`:
    an offset by partition; a missing partition was added later. Raises LogError."""
    partitions = list(partitions)
    yield from (Checked(None, harm) for harm in astray(partitions, copies))
    for partition in partitions:
        end = branched_at.get(partition.name, 0)  # 0: a partition added later
        common: list[StoredSeal] = []
        harms: list[Harm] = []
        for copy in [each for each in copies if each.seal.partition == partition.name]:
            wrong = _wrong(partition, copy, keys)
            if wrong is not None:
                harms.append(Harm(partition.name, copy.seal.base_offset, wrong))
            elif copy.seal.next_offset > end:
                yield Checked(copy.seal, None, beyond=end)
            else:
                common.append(copy)
        steps, more = _linked(partition, common)
        for step in steps:
            harm = examine(partition, step, in_copies=True)
            seal = step.stored.seal
            yield Checked(None, harm) if harm else Checked(seal, None, unchecked(partition.beginning[0], seal))
        yield from (Checked(None, harm) for harm in harms + more)


def astray(partitions: Iterable[Sealable], copies: Iterable[StoredSeal]) -> list[Harm]:
    """Return copies of seals about partitions that do not exist."""
    names = {each.name for each in partitions}
    gone = {copy.seal.partition: copy for copy in copies if copy.seal.partition not in names}
    return [Harm(name, None, f"it is gone; there is a copy of a seal, {copy.where}") for name, copy in gone.items()]


def plan(partition: Sealable, keys: Keys | None, copies: Sequence[StoredSeal] = ()) -> tuple[list[Step], list[Harm]]:
    """Return the stretches to examine, in order, and the harms of the seals themselves.

    `keys` None: signatures are not checked. Raises LogError."""
    stored, harms = partition.seals()
    if not stored and not harms and _has_records(partition):
        harms.append(Harm(partition.name, 0, "there is no seal of it: it was never sealed, or its seals are gone"))
    there = {each.seal.digest for each in stored}
    kept = {each.seal.digest: each for each in copies if each.seal.partition == partition.name}
    sound = []
    for each in [*stored, *(copy for digest, copy in kept.items() if digest not in there)]:
        wrong = _wrong(partition, each, keys)
        if wrong is not None:
            harms.append(Harm(partition.name, each.seal.base_offset, wrong))
            continue
        sound.append(replace(each, opening=each.opening or kept.get(each.seal.digest, each).opening))
        if each.seal.digest not in there:
            what = f"the seal of {each.seal.offsets} is gone; there is a copy, {each.where}"
            harms.append(Harm(partition.name, each.seal.base_offset, what))
    steps, more = _linked(partition, sound)
    return steps, sorted(harms + more, key=lambda harm: harm.offset or 0)


def _has_records(partition: Sealable) -> bool:
    try:
        return partition.next_offset > 0
    except CorruptLog:
        return True


def _wrong(partition: Sealable, stored: StoredSeal, keys: Keys | None) -> str | None:
    seal = stored.seal
    if (seal.log, seal.partition) != (partition.log, partition.name):
        return f"{stored.where}: the seal of another partition, {seal.partition} ({seal.log})"
    if keys is not None:
        try:
            verify_signature(stored, keys)
        except BadSeal as bad:
            return str(bad)
    return None


def _linked(partition: Sealable, stored: Iterable[StoredSeal]) -> tuple[list[Step], list[Harm]]:
    """Check that each seal continues the one that it names, or begins the history. Return steps and harms."""
    name = partition.name
    start, begun = partition.beginning if stored else (0, b"")
    known: dict[str, tuple[int, StoredSeal | None]] = {"": (0, None)}  # digest -> its end, and the seal
    steps, harms = [], []
    reached = 0
    for each in sorted(stored, key=lambda one: one.seal.base_offset):
        seal = each.seal
        end, before = known.get(seal.previous, (-1, None))
        chain = None
        if seal.base_offset == start > 0:
            chain, before = begun, None
        elif not seal.previous and 0 < seal.base_offset < start:
            pass  # the history began there when its first seal was made, and was trimmed later
        elif end == seal.base_offset:
            chain = first_chain(name) if before is None else None
        else:
            before = None
            if reached < seal.base_offset:
                what = f"the seal of offsets {reached} to {seal.base_offset - 1} is gone, which {each.where} continues"
                harms.append(Harm(name, reached, what))
            else:
                harms.append(Harm(name, seal.base_offset, f"{each.where}: it does not continue the seal before it"))
        steps.append(Step(each, chain, before))
        known[seal.digest] = seal.next_offset, each
        reached = max(reached, seal.next_offset)
    return steps, harms


def examine(partition: Sealable, step: Step, in_copies: bool = False) -> Harm | None:
    """Check that a stretch of the log and its opening are unchanged since it was sealed. Return the harm, or None.

    `in_copies`: the opening is in a copy of the seal, which has no prints. Raises LogError if the stretch cannot be
    read."""
    seal = step.stored.seal
    name, base = partition.name, seal.base_offset
    start, begun = partition.beginning
    if seal.next_offset < start:
        return None
    opening = _opening(partition, step.stored)
    if base < start:
        return _examine_rest(partition, seal, start, begun, opening, in_copies)
    if opening is None:
        return _broken(partition, base, seal.next_offset) or _without_secret(name, seal, in_copies)
    try:
        stretch = _Stretch(partition, base, opening.secret, seal.schema)
    except UnknownSchema:
        what = f"{seal.offsets} were sealed by a newer version of RewindMQ: check them with that version"
        return Harm(name, base, what, records=False)
    begun_at, chain = _chain_before(partition, step)
    reached = chain or b""
    corrupt: CorruptLog | None = None
    try:
        for run in partition.walk(base, seal.next_offset, reached):
            stretch.add(run)
            reached = run.chain
    except CorruptLog as error:
        corrupt = error
    sealed = opening.prints
    known = hashlib.sha256(sealed).hexdigest() == seal.prints
    if corrupt is not None:
        if known and not sealed.startswith(stretch.prints):  # the log broke after the first differing record
            offset, what = stretch.located(sealed)
            return Harm(name, offset, f"{what}; and {corrupt}")
        return Harm(name, corrupt.offset, str(corrupt))
    if stretch.tree.root().hex() != seal.root or stretch.next_offset != seal.next_offset:
        if known:
            return Harm(name, *stretch.located(sealed))
        return Harm(name, base, f"{seal.offsets} are not the records that were sealed")
    if chain is not None and reached != opening.chain:
        if begun_at < base:
            what = f"something from there to offset {seal.next_offset - 1} is not as sealed, by the hash chain"
            return Harm(name, begun_at, what)
        what = f"{seal.offsets} were written anew: the records are those that were sealed, the hash chain is not"
        return Harm(name, base, what)
    if not known and not in_copies:
        what = f"{seal.offsets} are what was sealed; the prints of the seal, by which a change is located, are"
        return Harm(name, base, f"{what} {'others' if sealed else 'gone'}", records=False)
    return None


def _chain_before(partition: Sealable, step: Step) -> tuple[int, bytes | None]:
    """Return the hash chain before a stretch, and the offset from which it was computed. None: unknowable."""
    base = step.stored.seal.base_offset
    if step.before is None:
        return base, step.chain
    try:
        return _chain_behind(partition, step.before)
    except CorruptLog:  # its own stretch reports it
        return base, None


def _broken(partition: Sealable, start: int, end: int) -> Harm | None:
    """Return the place at which the log itself is damaged, or ends before these offsets do."""
    reached = start
    try:
        for run in partition.walk(start, end, b""):
            reached = run.next_offset
    except CorruptLog as error:
        return Harm(partition.name, error.offset, str(error))
    if reached < end:
        what = f"the log ends at offset {reached}, and was sealed up to offset {end - 1}"
        return Harm(partition.name, reached, what)
    return None


def _without_secret(partition: str, seal: Seal, in_copies: bool) -> Harm:
    what = f"the secret of the seal of {seal.offsets} is"
    if in_copies:
        return Harm(partition, seal.base_offset, f"{what} not in the copies: make them with 'export_seals --secrets'")
    what += " gone: only a later seal that was made before that proves them, by its hash chain"
    return Harm(partition, seal.base_offset, what, records=False)


def _examine_rest(
    partition: Sealable, seal: Seal, start: int, chain: bytes, opening: Opening | None, in_copies: bool
) -> Harm | None:
    """Check the rest of a stretch whose beginning was trimmed, by the hash chain at its end."""
    try:
        for run in partition.walk(start, seal.next_offset, chain) if start < seal.next_offset else ():
            chain = run.chain
    except CorruptLog as error:
        return Harm(partition.name, error.offset, str(error))
    if opening is None:
        return _without_secret(partition.name, seal, in_copies)
    if chain == opening.chain:
        return None
    what = f"the records from offset {start} on are not those that were sealed with {seal.offsets}"
    return Harm(partition.name, start, what)


def unchecked(start: int, seal: Seal) -> str:
    """Return the part of a seal that can no longer be checked, because the history begins at offset `start`.

    Empty if there is no such part."""
    if start <= seal.base_offset:
        return ""
    if seal.next_offset <= start:
        return "not checked: trimmed"
    return f"holds from offset {start} on, by the hash chain; not checked: {seal.base_offset} to {start - 1}, trimmed"


# -- proofs ------------------------------------------------------------------------------------------------------------


def prove(partition: Sealable, offset: int, register: Register | None = None, with_body: bool = True) -> dict[str, Any]:
    """Return a proof that the record at `offset` is in the sealed history, and in a note of the register.

    `with_body` False: it has a commitment instead of a body or a hash. Raises BadSeal if no seal or no note covers it,
    or the seal's secret is gone; BadFile; LogError."""
    stored = sound(partition, partition.seals()[0], None)
    covering = [each for each in stored if each.seal.base_offset <= offset < each.seal.next_offset]
    if not covering:
        raise BadSeal(f"{partition.name}: offset {offset} is not sealed yet: run 'rewindmq seal'")
    known = () if register is None else register.digests  # two sealers may have sealed it, and one has the register
    found = next((each for each in covering if each.seal.digest in known), covering[0])
    way = {} if register is None else {"register": register.way_to(found.seal.digest)}
    seal = found.seal
    start = partition.beginning[0]
    if seal.base_offset < start:
        what = f"the proof needs all of {seal.offsets}, and what is below offset {start} was trimmed"
        raise BadSeal(f"{partition.name}: {what}")
    opening = _opening(partition, found)
    if opening is None:
        raise BadSeal(f"{partition.name}: the secret of the seal of {seal.offsets} is gone: it proves no single record")
    try:
        commitments = Commitments(opening.secret, WithheldFields(seal.schema), partition.value_at)
    except UnknownSchema as error:
        raise BadSeal(f"{partition.name}: {seal.offsets} were sealed by a newer version of RewindMQ: {error}") from None
    records = [record for run in partition.walk(seal.base_offset, seal.next_offset, b"") for record in run.records]
    index = offset - seal.base_offset
    if index >= len(records):
        raise LogError(f"{partition.name}: offset {offset} was sealed, and is not in the log")
    path = proof(list(commitments.leaves(seal.base_offset, records)), index)
    return {
        "format": FORMAT,
        "partition": partition.name,
        "offset": offset,
        "record": list(commitments.parts(offset, records[index], with_body)),
        "path": [each.hex() for each in path],
        **found.public.content,
        **way,
    }
