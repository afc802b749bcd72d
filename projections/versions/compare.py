"""Compares two versions of the fold over one history: finds the first event that they treat differently (B-08).

    found = first_difference(log, Path("/srv/rewindmq-next"))       # None: they agree, up to the last event
    found.offset, found.event, found.here.effects, found.there.effects

The other version is a directory with its `projections` and `schemas`: a checkout, or the site-packages in which it is
installed. Each version folds in its own process (worker.py), and both get the same records. If the older part of the
log was trimmed, both begin with the state of its base. Every `STRIDE` events each reports its stand. Where they first
disagree, both begin anew and report after each event of that stride.
A stand is the digest of the state, and a digest of all effects so far, so that a temporary difference is also found.
A version need not know the schema of the other. It gets each record under a schema that it has itself released: this
version's current one, or otherwise the newest that both know.
Versions that encode a state in different ways can be compared by their effects alone. Both versions run from their .py
files, never from extension modules, so that only sources are compared (rewindmq/builds.py).
"""

import json
import marshal
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import rewindmq
from rewindmq import builds
from rewindmq.projections.replay import PartitionLog, decoder_for, groups_of
from rewindmq.projections.store.bases import BaseError
from rewindmq.projections.versions.worker import BEGIN, DESCRIBE, FOLD, HEAD, OWN_TIME, SIZE, STAND
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.registry import envelope_fingerprint, released_in_order
from rewindmq.schemas.single_object import header_of

STRIDE = 5_000  # events
HERE = Path(rewindmq.__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("worker.py")


class VersionError(Exception):
    """The other version cannot be run: it does not exist, or not with this interpreter."""


@dataclass(frozen=True, slots=True)
class Side:
    """The answer of one version after the event.

    `effects`: the effects of the event. `queues`: the numbers and texts of each queue (`vhost/name`). `ended`: the
    error with which the version refused to continue, or empty."""

    effects: list[str]
    queues: dict[str, dict[str, int | str]]
    ended: str


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first event that two versions treat differently, with the answer of each version."""

    partition: str
    offset: int
    timestamp_ms: int
    user: str
    event: str  # its type; empty for a record that cannot be decoded
    here: Side
    there: Side

    def fields(self) -> Iterator[tuple[str, str, object, object]]:
        """Yield (queue, field, here, there) of each difference; None where a version has no such queue or field."""
        for queue in sorted(self.here.queues.keys() | self.there.queues.keys()):
            one, other = self.here.queues.get(queue, {}), self.there.queues.get(queue, {})
            for name in sorted(one.keys() | other.keys()):
                if one.get(name) != other.get(name):
                    yield queue, name, one.get(name), other.get(name)


class Stepper:
    """A version of the fold, which runs in its own process.

    Methods raise VersionError."""

    def __init__(self, version: Path, log: PartitionLog) -> None:
        self.version = version
        self._sent = _translator(version)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), log.name, "shared" if log.shared else "sole"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(version), builds.SWITCH: "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def begin(self, state: bytes) -> None:
        """Begin with a state from `_state_of`."""
        refusal = self.ask(BEGIN + SIZE.pack(len(state)) + state).strip()
        if refusal:
            raise VersionError(f"{self.version}: it cannot begin with the state of the base: {refusal}")

    def fold(self, offset: int, time_ms: int | None, record: bytes) -> None:
        """Fold the next record. `time_ms`: the log's time; None: the envelope's own holds."""
        record = self._sent(record)
        head = HEAD.pack(offset, OWN_TIME if time_ms is None else time_ms, len(record))
        self._send(FOLD + head + record)

    def stand(self) -> tuple[str, str]:
        """Return the digests of the state and of the effects."""
        state, effects = self.ask(STAND).split()
        return state, effects

    def ask(self, what: bytes) -> str:
        """Send a request and return the answer, one line."""
        self._send(what, now=True)
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise self._broken()
        return answer.decode()

    def describe(self) -> Side:
        """Return the queues, and the effects of the record folded last."""
        answer = json.loads(self.ask(DESCRIBE))
        return Side(answer["effects"], answer["queues"], answer["ended"])

    def _send(self, request: bytes, now: bool = False) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(request)
            if now:
                self.process.stdin.flush()
        except BrokenPipeError:
            raise self._broken() from None

    def _broken(self) -> VersionError:
        assert self.process.stderr is not None
        self.process.kill()
        last = self.process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        return VersionError(f"{self.version}: {last or 'it ended without a word'}")


def _translator(version: Path) -> Callable[[bytes], bytes]:
    """Return a function that converts a record of the log to a schema that the version knows.

    A record without such a form stays unchanged, and the version reports that it cannot read it."""
    known = {each.stem for each in (version / "rewindmq" / "schemas" / "released").glob("*.avsc")}
    schemas = [each for each in released_in_order() if each in known]
    if not schemas or schemas[-1] == envelope_fingerprint():
        return bytes
    encoder, decode = encoder_under(schemas[-1]), Decoder().decode
    readable = tuple(map(header_of, schemas))

    def translated(record: bytes) -> bytes:
        if not record.startswith(readable):
            with suppress(UndecodableRecord, ValueError):
                timestamp_ms, actor, event = decode(record)
                return encoder.encode(encoder.prefix(timestamp_ms, actor), event)
        return record

    return translated


def first_difference(
    log: PartitionLog, other: Path, effects_only: bool = False, version: Path = HERE
) -> FirstDifference | None:
    """Return the first event of a partition that two versions of the fold treat differently; None if there is none.

    Raises VersionError, CorruptLog, LogError."""
    for folder in ("projections", "schemas"):
        if not (other / "rewindmq" / folder).is_dir():
            raise VersionError(f"{other}: no version of RewindMQ: it has no {folder}/")
    state = _state_of(log)
    with Stepper(version, log) as here, Stepper(other, log) as there:
        _begin(state, here, there, effects_only)
        agreed = _agreed_before(log, here, there, effects_only)
    if agreed is None:
        return None
    with Stepper(version, log) as here, Stepper(other, log) as there:
        _begin(state, here, there, effects_only)
        return _step_from(agreed, log, here, there, effects_only)


def _state_of(log: PartitionLog) -> bytes | None:
    """Return the state at a trimmed log's beginning, for another process; None if the log begins at offset 0.

    Raises VersionError if the log has no base, LogError, NewerHistory."""
    if log.start_offset == 0:
        return None
    base = log.base()
    if base is None:
        raise VersionError(f"{log.name} begins at offset {log.start_offset}, and has no base to begin a fold with")
    try:
        machine = base.machine()
    except BaseError as error:
        raise VersionError(str(error)) from None
    return marshal.dumps((machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()]))


def _begin(state: bytes | None, here: Stepper, there: Stepper, effects_only: bool) -> None:
    if state is None:
        return
    here.begin(state)
    there.begin(state)
    if not _agree(here, there, effects_only):
        raise VersionError(f"{there.version}: it encodes the state of the base otherwise: compare the effects alone")


def _agree(here: Stepper, there: Stepper, effects_only: bool) -> bool:
    one, other = here.stand(), there.stand()
    return one[1] == other[1] if effects_only else one == other


def _agreed_before(log: PartitionLog, here: Stepper, there: Stepper, effects_only: bool) -> int | None:
    """Return an offset at most one stride before the first difference; None when there is none."""
    agreed = log.start_offset
    for count, (offset, time_ms, record) in enumerate(_records(log), 1):
        here.fold(offset, time_ms, record)
        there.fold(offset, time_ms, record)
        if count % STRIDE == 0:
            if not _agree(here, there, effects_only):
                return agreed
            agreed = offset + 1
    return None if _agree(here, there, effects_only) else agreed


def _step_from(agreed: int, log: PartitionLog, here: Stepper, there: Stepper, effects_only: bool) -> FirstDifference:
    for offset, time_ms, record in _records(log):
        here.fold(offset, time_ms, record)
        there.fold(offset, time_ms, record)
        if offset >= agreed and not _agree(here, there, effects_only):
            return _difference(log, offset, time_ms, record, here.describe(), there.describe())
    raise AssertionError("the versions disagreed a moment ago")


def _difference(
    log: PartitionLog, offset: int, time_ms: int | None, record: bytes, here: Side, there: Side
) -> FirstDifference:
    try:
        own_ms, actor, event = decoder_for(log).decode(record, False)
    except UndecodableRecord:
        return FirstDifference(log.name, offset, time_ms or 0, "", "", here, there)
    when = own_ms if time_ms is None else time_ms
    return FirstDifference(log.name, offset, when, actor.user, type(event).__name__, here, there)


def _records(log: PartitionLog) -> Iterator[tuple[int, int | None, bytes]]:
    for offsets, records, times in groups_of(log, log.start_offset, log.next_offset):
        for index, offset in enumerate(offsets):
            yield offset, None if times is None else times[index], records[index]
