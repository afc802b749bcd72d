"""Stores an audit of a partition, to be resumed where it stopped: the machine's state and the ledger's beliefs.

There is one file for each batch.

    DIR/queues-0/00000000000000000007.audit      after batch 7: a StoredAudit (file_format.py)

Rules
- A batch is folded on top of the newest state of an earlier batch, even if it has a state of its own already. So a
  batch that is done once more does not count twice.
- A file appears whole or not at all. The file before it is kept, as the batch may have to be done again.
"""

import os
from pathlib import Path

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.whole_file import write_whole
from rewindmq.projections.machine.machine import Machine
from rewindmq.spark_replay.audit.file_format import StoredAudit, packed, resumed, unpacked
from rewindmq.spark_replay.audit.fold import AuditProduct

SUFFIX = ".audit"


class AuditStates:
    """The states of one partition below the directory of a watch."""

    def __init__(self, directory: Path, partition: str) -> None:
        self.directory = directory / partition
        self.partition = partition

    def before(self, batch: int) -> AuditProduct:
        """Return the audit as the earlier batches left it; a new one when there was none.

        Raises LogError for a damaged file."""
        earlier = [number for number in self._batches() if number < batch]
        if not earlier:
            product = AuditProduct(self.partition)
            product.begin(Machine(self.partition))
            return product
        path = self._path(earlier[-1])
        found = unpacked(path)
        machine = Machine.load(self.partition, found.head, found.pieces)
        if machine.digest() != found.digest:
            raise LogError(f"{path}: its state has the digest {machine.digest()}, but the file says {found.digest}")
        return resumed(machine, found.beliefs)

    def save(self, batch: int, product: AuditProduct) -> None:
        """Write the audit after a batch, and remove the files that are no longer needed."""
        machine = product.machine
        pieces = [(meta, chunks) for _, meta, chunks in machine.pieces()]
        content = packed(StoredAudit(machine.digest(), machine.head(), product, {}, pieces))
        self.directory.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(batch), content, os.replace)
        for number in [number for number in self._batches() if number < batch][:-1]:
            self._path(number).unlink(missing_ok=True)

    def _batches(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob(f"{'[0-9]' * 20}{SUFFIX}"))

    def _path(self, batch: int) -> Path:
        return self.directory / f"{batch:020d}{SUFFIX}"
