"""The identity with which the history of a data directory begins."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
from rewindmq.engine.log.embedded.reader import SegmentReader
from rewindmq.engine.log.embedded.segments import Header, base_offset_of, segment_files
from rewindmq.engine.log.whole_file import write_whole
from rewindmq.schemas.formats import formatted, values_in

NOTE = "history"  # a file beside snapshots


def root_of(data_dir: Path) -> str:
    """Return the identity with which the history of a data directory begins, which a fork shares with its parent.

    Raises LogError if the beginning is gone, or does not exist yet."""
    directory = partition_directory(data_dir, METADATA)
    files = segment_files(directory) if directory.is_dir() else []
    if not files or base_offset_of(files[0]) != 0:
        raise LogError(f"{data_dir}: the beginning of {METADATA} is gone, so nothing identifies this history")
    segment = SegmentReader(files[0], last=len(files) == 1)
    try:
        header = segment.header
        if segment.size() == len(header.raw):  # a broker may still remake this segment
            raise LogError(f"{data_dir}: the log is empty: start a broker first")
    finally:
        segment.close()
    return history_begun_with(header)


def history_begun_with(header: Header) -> str:
    """Return the identity of a history from the first header of its metadata log, whose sync marker is random."""
    return hashlib.sha256(first_chain(METADATA) + header.raw).hexdigest()


def noted_history(snapshots: Path) -> list[str]:
    """Return the history's identities noted by snapshots; empty: none. Raises LogError for another format."""
    try:
        return [str(each) for each in values_in((snapshots / NOTE).read_text(), snapshots / NOTE, LogError)["history"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_note(snapshots: Path, identities: Sequence[str]) -> None:
    """Note the history of snapshots beside them. Raises OSError."""
    snapshots.mkdir(parents=True, exist_ok=True)
    write_whole(snapshots / NOTE, formatted({"history": identities}).encode() + b"\n", os.replace)


def require_own(snapshots: Path, data_dir: Path) -> None:
    """Check that snapshots are of the history in a data directory, if they note one. Raises LogError."""
    noted = noted_history(snapshots)
    if noted and noted[0] != root_of(data_dir):
        raise LogError(
            f"{snapshots} belongs to another history than {data_dir / 'log'}: move it away, or start the broker, which"
            " makes its own"
        )
