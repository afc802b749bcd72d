"""The proof that a subject was erased: the state of each of its keys, from the history and the directory of keys,
without a broker.

    in_use         the key is in the directory, and nobody erased it: messages under it can be read
    destroyed      the history says that the key was erased, and the directory has its tombstone
    unlogged       the directory has the tombstone, and the history has no erasure: a broker ended between the two.
                   Erase the subject once more
    STILL THERE    the history says that the key was erased, and it is in the directory
    unknown        the directory has neither the key nor its tombstone: it is the wrong directory, or the key was lost

This reads the history as it is. `verify` and `verify_seals` say whether it is whole. An erasure does not disturb them,
since no byte of the log changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rewindmq.engine.erasure.key_store import KeyStore, by_generation, ends
from rewindmq.engine.log.location import HistoryReader
from rewindmq.projections.marks import topology_of
from rewindmq.projections.replay import PartitionLog, decoder_for, groups_of
from rewindmq.projections.topology.about_history import Erasure
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Published

IN_USE, DESTROYED, UNLOGGED, STILL_THERE, UNKNOWN = "in_use", "destroyed", "unlogged", "STILL THERE", "unknown"


@dataclass(slots=True)
class KeyReport:
    """One key of the subject. `records`: number of records in the history under this key. `first`: the first of them,
    as PARTITION:OFFSET."""

    key_id: str
    records: int = 0
    first: str = ""
    state: str = ""
    erasure: Erasure | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """All keys of the subject. `plain`: number of records that name the subject in their properties and are not
    encrypted."""

    keys: list[KeyReport]
    plain: int

    @property
    def is_erased(self) -> bool:
        """Whether the subject was erased and nothing of that can be read. The subject may have a new key since."""
        states = {each.state for each in self.keys}
        return DESTROYED in states and not states & {STILL_THERE, UNLOGGED, UNKNOWN}


def prove(reader: HistoryReader, keys: KeyStore, subject: str) -> Proof:
    """Find the state of all keys of a subject. LogError: the history can't be read."""
    erasures = [
        (key_id, erasure)
        for erasure in topology_of(reader.metadata).erasures
        if erasure.subject == subject
        for key_id in erasure.key_ids
    ]
    reports = {key_id: KeyReport(key_id) for key_id in (*keys.known(subject), *(key_id for key_id, _ in erasures))}
    plain = _count(reader.queues, subject, reports)
    for report in reports.values():
        report.erasure = next((each for erased, each in erasures if ends(erased, report.key_id)), None)
        report.state = _state(keys, report)
    return Proof(sorted(reports.values(), key=lambda each: by_generation(each.key_id)), plain)


def _state(keys: KeyStore, report: KeyReport) -> str:
    if keys.is_there(report.key_id):
        return IN_USE if report.erasure is None and not keys.has_tombstone(report.key_id) else STILL_THERE
    if not keys.has_tombstone(report.key_id):
        return UNKNOWN
    return UNLOGGED if report.erasure is None else DESTROYED


def _count(logs: Iterable[PartitionLog], subject: str, reports: dict[str, KeyReport]) -> int:
    """Count the records of each key into its report. Returns the number of records that name the subject and are not
    encrypted."""
    plain = 0
    name = subject.encode()
    as_header = b"S" + len(name).to_bytes(4, "big") + name
    for log in logs:
        decode = decoder_for(log).decode
        for offsets, records, _ in groups_of(log, log.start_offset):
            for offset, record in zip(offsets, records, strict=True):
                if name not in record:
                    continue
                try:
                    event = decode(record, False)[2]
                except UndecodableRecord:
                    continue
                if not isinstance(event, Published):
                    continue
                encryption = event.encryption
                if encryption is None:
                    plain += as_header in event.properties
                elif encryption.subject == subject:
                    report = reports.setdefault(encryption.key_id, KeyReport(encryption.key_id))
                    report.records += 1
                    report.first = report.first or f"{log.name}:{offset}"
    return plain
