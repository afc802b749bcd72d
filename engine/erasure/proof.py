"""The proof that a subject was erased, or that a day has expired: the state of each of its keys, from the history and
the directory of keys, without a broker.

    in_use         the key is in the directory, and nobody erased it: messages under it can be read
    destroyed      the history says that the subject was erased, and the directory has the key's tombstone
    expired        the history says that the key's day has expired, and the directory has its tombstone
    unlogged       the directory has the tombstone, and the history does not say why: a broker ended between the two.
                   Erase the subject once more. A day's key needs nothing: the next start logs it
    STILL THERE    the history or a tombstone says that the key was destroyed, and it is in the directory, or the Vault
                   still opens it
    unknown        the directory has neither the key nor its tombstone: it is the wrong directory, or the key was lost

This reads the history as it is. `verify` and `verify_seals` say whether it is whole. An erasure does not disturb them,
since no byte of the log changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rewindmq.engine.erasure.key_store import DIGITS, KeyStore, by_generation, day_of, ends
from rewindmq.engine.keeping.location import HistoryReader
from rewindmq.projections.marks import topology_of
from rewindmq.projections.replay import PartitionLog, decoder_for, groups_of
from rewindmq.projections.topology.about_history import Erasure, ExpiredDay
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Encryption

IN_USE, DESTROYED, EXPIRED = "in_use", "destroyed", "expired"
UNLOGGED, STILL_THERE, UNKNOWN = "unlogged", "STILL THERE", "unknown"


@dataclass(slots=True)
class KeyReport:
    """One key. `records`: number of records in the history under this key. `first`: the first of them, as
    PARTITION:OFFSET. `erasure`: of its subject; `expired`: the end of its day, if that destroyed it."""

    key_id: str
    records: int = 0
    first: str = ""
    state: str = ""
    erasure: Erasure | None = None
    expired: ExpiredDay | None = None


@dataclass(frozen=True, slots=True)
class ErasureProof:
    """All keys of the subject or the day. `plain`: number of records that name the subject in their properties and are
    not encrypted."""

    keys: list[KeyReport]
    plain: int

    @property
    def is_erased(self) -> bool:
        """Return True if the subject was erased and nothing erased can be read. It may have a new key since."""
        states = {each.state for each in self.keys}
        return DESTROYED in states and not states & {STILL_THERE, UNLOGGED, UNKNOWN}

    @property
    def is_expired(self) -> bool:
        """Return True if no body of the day can be read, and the end of the day is a reason for that."""
        states = {each.state for each in self.keys}
        return EXPIRED in states and states <= {EXPIRED, DESTROYED}


def prove(reader: HistoryReader, keys: KeyStore, subject: str) -> ErasureProof:
    """Find the state of all keys of a subject. LogError: the history can't be read."""
    topology = topology_of(reader.metadata)
    erased = [each for erasure in topology.erasures if erasure.subject == subject for each in erasure.key_ids]
    reports = {key_id: KeyReport(key_id) for key_id in (*keys.known(subject), *erased)}
    name = subject.encode()
    as_header = b"S" + len(name).to_bytes(4, "big") + name
    plain = _count(reader.queues, name, lambda encryption: encryption.subject == subject, as_header, reports)
    return _proof(keys, topology, reports, plain)


def prove_day(reader: HistoryReader, keys: KeyStore, day: str) -> ErasureProof:
    """Find the state of all keys of a day, such as 2026-11-23. LogError: the history can't be read."""
    topology = topology_of(reader.metadata)
    named = [each for each in topology.erased_keys if day_of(each) == day]
    reports = {key_id: KeyReport(key_id) for key_id in (*keys.of_days().get(day, ()), *named)}
    in_ids = f"00000000{day.replace('-', '')}-".encode()
    _count(reader.queues, in_ids, lambda encryption: day_of(encryption.key_id) == day, None, reports)
    return _proof(keys, topology, reports, 0)


def _proof(keys: KeyStore, topology: Topology, reports: dict[str, KeyReport], plain: int) -> ErasureProof:
    history = KeyStore.of(keys.directory, topology)
    erasures: dict[str, list[tuple[str, Erasure]]] = {}  # by the digits of the subject
    for erasure in topology.erasures:
        for key_id in erasure.key_ids:
            erasures.setdefault(key_id[:DIGITS], []).append((key_id, erasure))
    for report in reports.values():
        of_subject = erasures.get(report.key_id[:DIGITS], ())
        report.erasure = next((each for erased, each in of_subject if ends(erased, report.key_id)), None)
        report.expired = history.end_of_day(report.key_id)
        report.state = _state(keys, report)
    return ErasureProof(sorted(reports.values(), key=lambda each: by_generation(each.key_id)), plain)


def _state(keys: KeyStore, report: KeyReport) -> str:
    unexplained = report.erasure is None and report.expired is None
    if keys.is_there(report.key_id) or (keys.has_tombstone(report.key_id) and keys.is_held(report.key_id)):
        return IN_USE if unexplained and not keys.has_tombstone(report.key_id) else STILL_THERE
    if not keys.has_tombstone(report.key_id):
        return UNKNOWN
    if report.erasure is not None:
        return DESTROYED
    return UNLOGGED if report.expired is None else EXPIRED


def _count(
    logs: Iterable[PartitionLog],
    part: bytes,
    wanted: Callable[[Encryption], bool],
    header: bytes | None,
    reports: dict[str, KeyReport],
) -> int:
    """Count the records of each wanted key into its report. `part`: bytes that are in each such record. Returns the
    number of records that have the header and are not encrypted."""
    plain = 0
    for log in logs:
        decode = decoder_for(log).decode
        for offsets, records, _ in groups_of(log, log.start_offset):
            for offset, record in zip(offsets, records, strict=True):
                if part not in record:
                    continue
                try:
                    event = decode(record, False)[2]
                except UndecodableRecord:
                    continue
                if not isinstance(event, Published):
                    continue
                encryption = event.encryption
                if encryption is None:
                    plain += header is not None and header in event.properties
                elif wanted(encryption):
                    report = reports.setdefault(encryption.key_id, KeyReport(encryption.key_id))
                    report.records += 1
                    report.first = report.first or f"{log.name}:{offset}"
    return plain
