"""Stores an audit of a partition, to be resumed where it stopped: the machine's state and the ledger's beliefs.

There is one file for each batch.

    DIR/queues-0/00000000000000000007.audit      after batch 7:  SHA-256 of the rest (32 bytes) | pickle

Rules
- A batch is folded on top of the newest state of an earlier batch, even if it has a state of its own already. So a
  batch that is done once more does not count twice.
- A file appears whole or not at all. The file before it is kept, as the batch may have to be done again.
- Only the classes below may be unpickled, so that a file can hold no code.
"""

import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

from rewindmq.engine.log.contract import LogError
from rewindmq.projections.machine.machine import Machine
from rewindmq.spark_replay.audit.fold import AuditProduct

SUFFIX = ".audit"
FORMAT = 7
_CLASSES = {
    ("rewindmq.projections.last_words", "LastWords"),
    ("rewindmq.spark_replay.audit.consumers", "Attached"),
    ("rewindmq.projections.claims", "Claims"),
    ("rewindmq.spark_replay.audit.identities", "Identities"),
    ("rewindmq.spark_replay.audit.priority_levels", "Levels"),
    ("rewindmq.spark_replay.audit.limits", "Limits"),
    ("rewindmq.spark_replay.audit.prefetch", "Prefetches"),
    ("rewindmq.schemas.values", "Argument"),
    ("rewindmq.schemas.values", "Policy"),
}
_MOVED = {  # files of earlier versions name the module on the left
    "rewindmq.schemas.events": "rewindmq.schemas.values",
    "rewindmq.spark_replay.audit.checkpoint_claims": "rewindmq.projections.claims",
}
_DIGEST_BYTES = hashlib.sha256().digest_size


class AuditStates:
    """The states of one partition below the directory of a watch."""

    def __init__(self, directory: Path, partition: str) -> None:
        self.directory = directory / partition
        self.partition = partition

    def before(self, batch: int) -> AuditProduct:
        """The audit as the earlier batches left it; a new one when there was none.

        Raises LogError for a damaged file."""
        earlier = [number for number in self._batches() if number < batch]
        if not earlier:
            product = AuditProduct(self.partition)
            product.begin(Machine(self.partition))
            return product
        return _load(self._path(earlier[-1]))

    def save(self, batch: int, product: AuditProduct) -> None:
        """Write the audit after a batch, and remove the files that are no longer needed."""
        machine = product.machine
        content = {
            "format": FORMAT,
            "partition": self.partition,
            "digest": machine.digest(),
            "head": machine.head(),
            "pieces": [(meta, chunks) for _, meta, chunks in machine.pieces()],
            "beliefs": product.beliefs,
        }
        packed = pickle.dumps(content, protocol=5)
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self._path(batch)
        part_file = path.with_suffix(f".{os.getpid()}.part")
        with part_file.open("wb") as file:
            file.write(hashlib.sha256(packed).digest())
            file.write(packed)
            file.flush()
            os.fsync(file.fileno())
        part_file.replace(path)
        for number in [number for number in self._batches() if number < batch][:-1]:
            self._path(number).unlink(missing_ok=True)

    def _batches(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob(f"{'[0-9]' * 20}{SUFFIX}"))

    def _path(self, batch: int) -> Path:
        return self.directory / f"{batch:020d}{SUFFIX}"


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = _MOVED.get(module, module)
        if (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an audit's state")
        return super().find_class(module, name)


def unpacked(path: Path) -> Any:
    """The content of a file of an audit, its format included.

    Raises LogError for a file that is damaged or of another version."""
    content = path.read_bytes()
    digest, packed = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(packed).digest() != digest:
        raise LogError(f"{path}: damaged; begin again with another directory")
    found = _Plain(io.BytesIO(packed)).load()
    if found["format"] != FORMAT:
        raise LogError(f"{path}: of another version of the audit; begin again with another directory")
    return found


def _load(path: Path) -> AuditProduct:
    found = unpacked(path)
    machine = Machine.load(found["partition"], found["head"], found["pieces"])
    if machine.digest() != found["digest"]:
        raise LogError(f"{path}: its state has the digest {machine.digest()}, but the file says {found['digest']}")
    return AuditProduct.believing(machine, found["beliefs"])
