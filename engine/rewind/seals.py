"""The seals of a history for one question: how far each partition is sealed, and whether its seals hold.

    sealed(history)                                       a row for each partition
    check(history, "queues-0", keys, first, deadline)     a portion: the stretches from number `first` on

The rules are those of `rewindmq verify_seals` (engine/keeping/seals/sealer.py). A stretch has some 65,536 records,
which take a fifth of a second. A portion has at least one.
"""

from dataclasses import dataclass, field

from rewindmq.engine.keeping.location import Location
from rewindmq.engine.keeping.seals.partitions import sealable_partitions
from rewindmq.engine.keeping.seals.seal import Keys
from rewindmq.engine.keeping.seals.sealer import Harm, Sealable, examine, plan, unchecked
from rewindmq.engine.rewind.outcomes import Deadline, OutOfTime


class NoSuchPartition(Exception):
    """There is no partition of this name."""


@dataclass(frozen=True, slots=True)
class SealedPartition:
    """The sealed part of a partition. `sealed_to` and `end` are exclusive. `key`, `time_ms`: of the newest seal.

    `harms`: files or records that are not seals. `keys`: all keys that signed, as fingerprints."""

    partition: str
    seals: int
    sealed_to: int
    end: int
    key: str | None
    time_ms: int | None
    keys: list[str]
    harms: list[str]


@dataclass(slots=True)
class SealPortion:
    """The stretches `first` to `behind` of a partition, checked. `stretches`: there are so many.

    `harms`: what does not hold. `notes`: what cannot be checked any more. `sealed_to`: up to where seals hold."""

    stretches: int
    behind: int
    harms: list[Harm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sealed_to: int = 0


def sealed(history: Location) -> list[SealedPartition]:
    """Return the sealed part of each partition as its seals state it, without a check of them. Raises LogError."""
    return [_sealed(each) for each in sealable_partitions(history)]


def _sealed(partition: Sealable) -> SealedPartition:
    stored, harms = partition.seals()
    mine = [each for each in stored if each.seal.partition == partition.name]
    newest = max(mine, key=lambda each: (each.seal.next_offset, each.seal.time_ms), default=None)
    return SealedPartition(
        partition.name,
        len(mine),
        0 if newest is None else newest.seal.next_offset,
        partition.next_offset,
        None if newest is None else newest.key,
        None if newest is None else newest.seal.time_ms,
        sorted({each.key for each in mine}),
        [str(harm) for harm in harms],
    )


def check(history: Location, name: str, keys: Keys | None, first: int, deadline: Deadline) -> SealPortion:
    """Check the stretches of a partition from number `first` on, for as long as there is time; at least one.

    `keys` None: signatures are not checked. Raises NoSuchPartition, LogError."""
    partition = next((each for each in sealable_partitions(history) if each.name == name), None)
    if partition is None:
        raise NoSuchPartition(f"there is no partition {name}")
    steps, harms = plan(partition, keys)
    portion = SealPortion(len(steps), min(first, len(steps)), harms if first == 0 else [])
    while portion.behind < len(steps):
        step = steps[portion.behind]
        harm = examine(partition, step)
        if harm is not None:
            portion.harms.append(harm)
        elif note := unchecked(partition.beginning[0], step.stored.seal):
            portion.notes.append(f"{step.stored.seal.offsets}: {note}")
        portion.sealed_to = step.stored.seal.next_offset
        portion.behind += 1
        try:
            deadline.check()
        except OutOfTime:
            break
    return portion
