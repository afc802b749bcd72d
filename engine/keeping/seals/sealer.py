"""Makes seals, checks them, and proves events, in the same way for a log in files and for one in Kafka.

    partitions = segmented(data_dir)  or  in_topics(KafkaLogReader(...))         in_files.py, in_topic.py
    for new in seal(partition, private, now_ms): ...
    for checked in check(partitions, keys, copies): ...

A partition is cut into stretches, and each has a seal that states the hash chain at its end. So every stretch can be
checked by itself, from the chain at the end of the one before: `plan` checks the seals among themselves, without the
log, and `examine` checks one stretch of the log against its seal (Spark examines many at the same time).

Two sealers at the same time make two seals of one stretch. Both are true, and both are checked.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.keeping.seals.fingerprints import located, print_of
from rewindmq.engine.keeping.seals.merkle import Tree, proof
from rewindmq.engine.keeping.seals.proof_verifier import FORMAT, leaf_hash
from rewindmq.engine.keeping.seals.register import Register
from rewindmq.engine.keeping.seals.seal import BadSeal, Keys, Seal, Stored, fingerprint, signed, verify_signature
from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import CorruptLog, LogError

STRETCH_RECORDS = 65_536  # a stretch is sealed when it has this many, or where the log ends


@dataclass(frozen=True, slots=True)
class Run:
    """Successive records in their sealed form, and the hash chain behind the last of them."""

    first_offset: int
    records: Sequence[bytes]
    chain: bytes

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.records)


@dataclass(frozen=True, slots=True)
class Harm:
    """A statement that does not hold, and its place: the first offset that it concerns.

    `records`: whether the history itself is concerned, and not only the prints that locate a change."""

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

    @property
    def beginning(self) -> tuple[int, bytes]:
        """The offset of the first record that is there, and the hash chain before it.

        Raises CorruptLog, LogError."""

    @property
    def next_offset(self) -> int: ...

    def walk(self, start: int, end: int | None, chain: bytes) -> Iterator[Run]:
        """Yields the records from offset `start` up to `end` (None: the end of the log).

        `chain` is the hash chain before them. Raises CorruptLog, LogError."""

    def seals(self) -> tuple[list[Stored], list[Harm]]:
        """The seals, in the order in which they were made, as far as that is known; and entries that are no seals."""

    def prints(self, stored: Stored) -> bytes:
        """The prints of a seal; empty where they are gone. Its hash says whether they belong to the seal."""

    def make_durable(self) -> None:
        """Make all records durable that `walk` has given out."""

    def store(self, sealed: Stored, prints: bytes) -> Stored:
        """Add a seal, durably. Returns it as stored.

        Raises LogError."""


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch to be examined. `chain`: the hash chain before its first record; None: not known."""

    stored: Stored
    chain: bytes | None


@dataclass(frozen=True, slots=True)
class Checked:
    """A seal that holds, or the harm that was found.

    `unchecked`: what of its stretch can't be checked any more. `beyond`: the seal is that of a parent, and reaches
    beyond the offset at which this history branched: it counts for nothing here."""

    seal: Seal | None
    harm: Harm | None
    unchecked: str = ""
    beyond: int | None = None


# -- sealing -----------------------------------------------------------------------------------------------------------


def seal(
    partition: Sealable, key: Ed25519PrivateKey, now_ms: int, older: Keys | None = None, copies: Sequence[Stored] = ()
) -> Iterator[Stored]:
    """Seal the records that are not sealed yet. Yields the new seals.

    It is safe beside a running broker. `older`: former keys. `copies`: seals that must still exist: if one is missing,
    it was taken away, and the remaining log must not be signed again. Raises CorruptLog, LogError, BadSeal."""
    trusted = {fingerprint(key.public_key()): key.public_key(), **(older or {})}
    stored, _ = partition.seals()
    before = sound(partition, stored, trusted)
    if stored and not before:
        raise BadSeal(f"{partition.name}: its seals are of another key ({stored[-1].key[:16]}...): name that one, too")
    there = {each.seal.digest for each in stored}
    for copy in copies:
        if copy.seal.partition == partition.name and copy.seal.digest not in there:
            raise BadSeal(f"{partition.name}: the seal of {copy.seal.offsets} is gone; there is a copy, {copy.where}")
    last = max(before, key=lambda each: each.seal.next_offset, default=None)
    start, begun = partition.beginning
    offset, chain, previous = start, begun, ""
    if last is not None:
        offset, chain, previous = last.seal.next_offset, bytes.fromhex(last.seal.chain), last.seal.digest
        if offset < start:  # the records behind the last seal were trimmed
            offset, chain = start, begun
    end = partition.next_offset
    if end < offset:
        raise BadSeal(f"{partition.name}: the log ends at offset {end}, and was sealed up to {offset - 1}")
    for base, tree, prints, reached in _stretches(partition, offset, chain):
        partition.make_durable()
        new = signed(
            Seal(
                partition.log,
                partition.name,
                base,
                base + tree.size,
                tree.root().hex(),
                reached.hex(),
                hashlib.sha256(prints).hexdigest(),
                previous,
                now_ms,
            ),
            key,
        )
        previous = new.seal.digest
        yield partition.store(new, prints)


def sound(partition: Sealable, stored: Iterable[Stored], keys: Keys | None) -> list[Stored]:
    """The seals that are about the partition and signed by one of the keys. `keys` None: signed by anybody."""
    return [each for each in stored if _wrong(partition, each, keys) is None]


def _stretches(partition: Sealable, offset: int, chain: bytes) -> Iterator[tuple[int, Tree, bytes, bytes]]:
    """Yields (first offset, tree, prints, hash chain at the end) of each stretch."""
    tree, prints, base = Tree(), bytearray(), offset
    for run in partition.walk(offset, None, chain):
        _add(tree, prints, run)
        chain = run.chain
        if tree.size >= STRETCH_RECORDS:
            yield base, tree, bytes(prints), chain
            base += tree.size
            tree, prints = Tree(), bytearray()
    if tree.size:
        yield base, tree, bytes(prints), chain


def _add(tree: Tree, prints: bytearray, run: Run) -> None:
    for record in run.records:
        leaf = leaf_hash(record)
        tree.add(leaf)
        prints += print_of(leaf)


# -- checking ----------------------------------------------------------------------------------------------------------


def check(partitions: Iterable[Sealable], keys: Keys, copies: Sequence[Stored] = ()) -> Iterator[Checked]:
    """Yields every seal that holds, and every harm.

    Records behind the last seal are not sealed yet. If a partition has records and no seal at all, it was never sealed,
    or its seals are gone. Raises LogError."""
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
    partitions: Iterable[Sealable], keys: Keys, copies: Sequence[Stored], branched_at: Mapping[str, int]
) -> Iterator[Checked]:
    """Yields the seals of the history from which a fork branched, as `check`.

    A seal that ends at the branch or before it must hold: both histories have its records in common. `branched_at`: an
    offset by partition; a partition that is not there came later. Raises LogError."""
    partitions = list(partitions)
    yield from (Checked(None, harm) for harm in astray(partitions, copies))
    for partition in partitions:
        end = branched_at.get(partition.name, 0)  # a partition that came later
        common: list[Stored] = []
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
            harm = examine(partition, step)
            holds = harm is None or not harm.records  # the prints stayed with the parent
            seal = step.stored.seal
            told = Checked(seal, None, unchecked(partition.beginning[0], seal))
            yield told if holds else Checked(None, harm)
        yield from (Checked(None, harm) for harm in harms + more)


def astray(partitions: Iterable[Sealable], copies: Iterable[Stored]) -> list[Harm]:
    """Copies of seals about partitions that do not exist."""
    names = {each.name for each in partitions}
    gone = {copy.seal.partition: copy for copy in copies if copy.seal.partition not in names}
    return [Harm(name, None, f"it is gone; there is a copy of a seal, {copy.where}") for name, copy in gone.items()]


def plan(partition: Sealable, keys: Keys | None, copies: Sequence[Stored] = ()) -> tuple[list[Step], list[Harm]]:
    """The stretches to be examined, in order, and the harms of the seals themselves.

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
        sound.append(each)
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


def _wrong(partition: Sealable, stored: Stored, keys: Keys | None) -> str | None:
    seal = stored.seal
    if (seal.log, seal.partition) != (partition.log, partition.name):
        return f"{stored.where}: the seal of another partition, {seal.partition} ({seal.log})"
    if keys is not None:
        try:
            verify_signature(stored, keys)
        except BadSeal as bad:
            return str(bad)
    return None


def _linked(partition: Sealable, stored: Iterable[Stored]) -> tuple[list[Step], list[Harm]]:
    """Check that each seal follows on the one that it names, or begins with the history. Returns steps and harms."""
    name = partition.name
    start, begun = partition.beginning if stored else (0, b"")
    known = {"": (0, first_chain(name))}  # digest -> its end
    steps, harms = [], []
    reached = 0
    for each in sorted(stored, key=lambda one: one.seal.base_offset):
        seal = each.seal
        end, chain = known.get(seal.previous, (-1, None))
        if seal.base_offset == start > 0:
            chain = begun
        elif not seal.previous and 0 < seal.base_offset < start:
            chain = None  # the history began there when its first seal was made, and was trimmed on
        elif end != seal.base_offset:
            chain = None
            if reached < seal.base_offset:
                what = f"the seal of offsets {reached} to {seal.base_offset - 1} is gone, which {each.where} follows on"
                harms.append(Harm(name, reached, what))
            else:
                harms.append(Harm(name, seal.base_offset, f"{each.where}: it does not follow on the seal before it"))
        steps.append(Step(each, chain))
        known[seal.digest] = seal.next_offset, bytes.fromhex(seal.chain)
        reached = max(reached, seal.next_offset)
    return steps, harms


def examine(partition: Sealable, step: Step) -> Harm | None:
    """Check that a stretch of the log is as it was sealed, and its prints too. Returns the harm, or None.

    Raises LogError when the stretch cannot be read."""
    seal = step.stored.seal
    start, begun = partition.beginning
    if seal.base_offset < start:
        return _examine_rest(partition, seal, start, begun)
    tree, prints, chain = Tree(), bytearray(), step.chain or b""
    corrupt: CorruptLog | None = None
    try:
        for run in partition.walk(seal.base_offset, seal.next_offset, chain):
            _add(tree, prints, run)
            chain = run.chain
    except CorruptLog as error:
        corrupt = error
    sealed = partition.prints(step.stored)
    known = hashlib.sha256(sealed).hexdigest() == seal.prints
    if corrupt is not None:
        if known and not sealed.startswith(prints):  # the log broke behind the first record that differs
            offset, what = located(sealed, bytes(prints), seal.base_offset)
            return Harm(partition.name, offset, f"{what}; and {corrupt}")
        return Harm(partition.name, corrupt.offset, str(corrupt))
    if tree.root().hex() != seal.root or tree.size != seal.next_offset - seal.base_offset:
        if known:
            return Harm(partition.name, *located(sealed, bytes(prints), seal.base_offset))
        return Harm(partition.name, seal.base_offset, f"{seal.offsets} are not the records that were sealed")
    if step.chain is not None and chain.hex() != seal.chain:
        what = f"{seal.offsets} were written anew: the records are those that were sealed, the hash chain is not"
        return Harm(partition.name, seal.base_offset, what)
    if not known:
        what = f"{seal.offsets} are what was sealed; the prints of the seal, by which a change is located, are"
        return Harm(partition.name, seal.base_offset, f"{what} {'others' if sealed else 'gone'}", records=False)
    return None


def _examine_rest(partition: Sealable, seal: Seal, start: int, chain: bytes) -> Harm | None:
    """Check what is left of a stretch whose beginning was trimmed: the hash chain at its end."""
    if seal.next_offset < start:
        return None
    try:
        for run in partition.walk(start, seal.next_offset, chain) if start < seal.next_offset else ():
            chain = run.chain
    except CorruptLog as error:
        return Harm(partition.name, error.offset, str(error))
    if chain.hex() == seal.chain:
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


def prove(partition: Sealable, offset: int, register: Register | None = None) -> dict[str, Any]:
    """A proof that the record at `offset` is in the sealed history, and in a note of the register.

    Raises BadSeal when no seal or no note covers it; BadFile; LogError."""
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
    records = [record for run in partition.walk(seal.base_offset, seal.next_offset, b"") for record in run.records]
    index = offset - seal.base_offset
    if index >= len(records):
        raise LogError(f"{partition.name}: offset {offset} was sealed, and is not in the log")
    path = proof([leaf_hash(record) for record in records], index)
    return {
        "format": FORMAT,
        "partition": partition.name,
        "offset": offset,
        "record": base64.b64encode(records[index]).decode(),
        "path": [each.hex() for each in path],
        **replace(found, prints_at=None).content,
        **way,
    }
