"""Was a subject erased? What the history and the directory of keys say of each of its keys, without a broker.

    in_use         it is there, and nobody erased it: messages under it can be read
    destroyed      the history says that it was erased, and the directory that it was destroyed
    unlogged       it was destroyed, and the history does not say so: a broker ended between the two. Ask once more
    STILL THERE    the history says that it was erased, and it is there
    unknown        neither it nor its mark is in the directory: is that the right one, or was the key lost before?

The history is read as it is; whether it is whole is for `verify` and `verify_seals` to say, which an erasure does not
disturb, since no byte of the log changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rewindmq.engine.erasure.key_store import KeyStore, by_generation, ends
from rewindmq.engine.log.location import HistoryReader
from rewindmq.projections.marks import topology_of
from rewindmq.projections.replay import PartitionLog, decoder_for, groups_of
from rewindmq.projections.topology.topology import Erasure
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Published

IN_USE, DESTROYED, UNLOGGED, STILL_THERE, UNKNOWN = "in_use", "destroyed", "unlogged", "STILL THERE", "unknown"


@dataclass(slots=True)
class KeyReport:
    """`records`: of the history under this key. `first`: the first of them, PARTITION:OFFSET."""

    key_id: str
    records: int = 0
    first: str = ""
    state: str = ""
    erasure: Erasure | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """`plain`: how many records name the subject in their properties, and are not encrypted."""

    keys: list[KeyReport]
    plain: int

    @property
    def is_erased(self) -> bool:
        """There was an erasure, and nothing that was erased can be read. The subject may have a new key since."""
        states = {each.state for each in self.keys}
        return DESTROYED in states and not states & {STILL_THERE, UNLOGGED, UNKNOWN}


def prove(reader: HistoryReader, keys: KeyStore, subject: str) -> Proof:
    """LogError when the history can't be read."""
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
        return IN_USE if report.erasure is None and not keys.is_marked(report.key_id) else STILL_THERE
    if not keys.is_marked(report.key_id):
        return UNKNOWN
    return UNLOGGED if report.erasure is None else DESTROYED


def _count(logs: Iterable[PartitionLog], subject: str, reports: dict[str, KeyReport]) -> int:
    """Add the records to the reports of their keys; how many are not encrypted and name the subject."""
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
