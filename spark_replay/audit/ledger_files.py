"""Keeps an audit's ledgers: its beliefs at the snapshots of an auditor's own directory (snapshots/external.py).

    OWN/queues-0/00000000000001000000.snapshot    the machine there (`cut`)
    OWN/queues-0/00000000000001000000.ledger      the audit's beliefs there: a StoredAudit (file_format.py)
    OWN/queues-0/00000000000001000000.letters     rows of LETTERS since the ledger before: an Arrow stream, whose schema
                                                  has rewindmq.format in its metadata

Rules
- A ledger is bound to its snapshot by the digest of the machine, and by its head (clock, state that belongs to no
  queue).
- A file appears whole or not at all, the ledger last: where a ledger is, its letters are.
- A ledger is a claim like any other: an audit that comes from the one before has to arrive at it (`differs`).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.whole_file import write_whole
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.formats import IN_METADATA, other_format
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.dead_letter_join import LetterRows
from rewindmq.spark_replay.audit.file_format import StoredAudit, differences, packed, resumed, unpacked
from rewindmq.spark_replay.audit.fold import AuditProduct

if TYPE_CHECKING:
    import pyarrow as pa

LEDGER, LETTERS = ".ledger", ".letters"
_VERSION = b"1"  # of the letters


class BadLedger(LogError):
    """The ledger is damaged, or does not belong to the snapshot beside it."""


class Ledgers:
    """The ledgers of one partition."""

    def __init__(self, external: Snapshots, partition: str) -> None:
        self.folder = external.directory / partition
        self.partition = partition

    def offsets(self) -> list[int]:
        """Return the offsets of the ledgers, ascending."""
        return sorted(int(path.stem) for path in self.folder.glob(f"{'[0-9]' * 20}{LEDGER}"))

    def has(self, offset: int) -> bool:
        """Return True if there is a ledger at this offset."""
        return self._path(offset, LEDGER).exists()

    def take(self, product: AuditProduct, letters: "Sequence[pa.RecordBatch]") -> None:
        """Write a ledger. `letters`: the letters since the ledger before.

        Raises OSError, and LogError for numbers of more than 64 bits."""
        offset = product.machine.next_offset
        write_whole(self._path(offset, LETTERS), _arrow(letters), os.replace)
        write_whole(self._path(offset, LEDGER), packed(_claimed(product)), os.replace)

    def begin(self, machine: Machine, letter_rows: LetterRows) -> AuditProduct:
        """Return the audit as it was at this machine's offset.

        Raises BadLedger."""
        found = self._load(machine.next_offset)
        if (found.digest, found.head) != (machine.digest(), machine.head()):
            raise BadLedger(f"{self._path(machine.next_offset, LEDGER)}: it is not of the snapshot beside it")
        try:
            product = resumed(machine, found.beliefs)
        except LogError as error:
            raise BadLedger(f"{self._path(machine.next_offset, LEDGER)}: {error}") from None
        letter_rows.under_way = found.under_way
        product.letter_rows = letter_rows
        return product

    def differs(self, product: AuditProduct) -> str | None:
        """The fields of the ledger at this offset in which it differs from the audit; None when all are equal."""
        try:
            said = self._load(product.machine.next_offset)
        except BadLedger as error:
            return str(error)
        return ", ".join(differences(_claimed(product), said)) or None

    def letters(self, offset: int) -> "list[pa.RecordBatch]":
        """Return the rows of LETTERS up to the ledger at `offset`.

        Raises BadLedger."""
        import pyarrow as pa

        found: list[pa.RecordBatch] = []
        for at in [each for each in self.offsets() if each <= offset]:
            path = self._path(at, LETTERS)
            try:
                with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                    version = (stream.schema.metadata or {}).get(IN_METADATA.encode())
                    if version != _VERSION:
                        raise BadLedger(f"{path}: {other_format(version, _VERSION)}")
                    found += (each.replace_schema_metadata() for each in stream)
            except (OSError, pa.ArrowInvalid) as error:
                raise BadLedger(f"{path}: {error}") from None
        return found

    def _load(self, offset: int) -> StoredAudit:
        path = self._path(offset, LEDGER)
        try:
            return unpacked(path)
        except (LogError, OSError) as error:
            raise BadLedger(f"{path}: cannot be used: {error}") from None

    def _path(self, offset: int, suffix: str) -> Path:
        return self.folder / f"{offset:020d}{suffix}"


def count_ledgers(external: Snapshots) -> int:
    """Return the number of ledgers of all partitions."""
    return sum(1 for _ in external.directory.glob(f"queues-*/*{LEDGER}"))


def _claimed(product: AuditProduct) -> StoredAudit:
    assert product.letter_rows is not None, "an audit that keeps ledgers notes dead letters"
    machine = product.machine
    return StoredAudit(machine.digest(), machine.head(), product, product.letter_rows.under_way, [])


def _arrow(batches: "Sequence[pa.RecordBatch]") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.LETTERS.with_metadata({IN_METADATA: _VERSION})) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())
