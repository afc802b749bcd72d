"""The identity with which the history of a data directory begins, and where it has snapshots."""

import json
from contextlib import suppress
from pathlib import Path

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA, PROCESSES, WORKER_HISTORY, partition_directory
from rewindmq.engine.log.embedded.index import first_chain, next_chain
from rewindmq.engine.log.embedded.reader import PartitionReader, SegmentReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.projections.store.snapshots import Snapshots

NOTE = "history"  # a file beside snapshots


def root_of(data_dir: Path) -> str:
    """The identity with which the history of a data directory begins; a fork has it in common with its parent.

    Raises LogError where the beginning is gone, or not there yet."""
    directory = partition_directory(data_dir, METADATA)
    files = segment_files(directory) if directory.is_dir() else []
    if not files or base_offset_of(files[0]) != 0:
        raise LogError(f"{data_dir}: the beginning of {METADATA} is gone, so nothing says which history this is")
    segment = SegmentReader(files[0], last=len(files) == 1)
    try:
        header = segment.header
        if segment.size() == len(header.raw):  # a broker may still make this segment anew
            raise LogError(f"{data_dir}: the log is empty: start a broker first")
    finally:
        segment.close()
    return next_chain(first_chain(METADATA), header.raw).hex()


def first_chain_in(data_dir: Path) -> str:
    """The hash chain at the first block of a history: no other one has it, a fork neither.

    Workers note it beside their states. Raises LogError where there is no block yet."""
    metadata = PartitionReader(partition_directory(data_dir, METADATA))
    for block in metadata.read(metadata.start_offset):
        return block.chain.hex()
    raise LogError(f"{data_dir}: the metadata log is empty")


def noted_history(snapshots: Path) -> list[str]:
    """The identities of the history that snapshots note (engine/embedded/beside_log.py); empty: they note none."""
    try:
        return [str(each) for each in json.loads((snapshots / NOTE).read_text())]
    except (OSError, ValueError, TypeError):
        return []


def require_own(snapshots: Path, data_dir: Path) -> None:
    """Check that snapshots are of the history in a data directory, as far as they note it. Raises LogError."""
    noted = noted_history(snapshots)
    if noted and noted[0] != root_of(data_dir):
        raise LogError(
            f"{snapshots} belongs to another history than {data_dir / 'log'}: move it away, or start the broker, which"
            " makes its own"
        )


def snapshots_in(data_dir: Path) -> list[Snapshots]:
    """The snapshots of the history in a data directory: the broker's own, and those of its workers, if it has any.

    Raises LogError."""
    found = [Snapshots(data_dir / "snapshots")]
    for note in sorted((data_dir / PROCESSES).glob(f"*/{WORKER_HISTORY}")):
        with suppress(OSError):  # the worker has gone, or begins anew
            if note.read_text().strip() == first_chain_in(data_dir):
                found.append(Snapshots(note.parent / "snapshots"))
    return found
