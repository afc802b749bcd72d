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
    return history_begun_with(header)


def history_begun_with(header: Header) -> str:
    """The identity of a history by the first header of its metadata log, whose sync marker is drawn at random."""
    return hashlib.sha256(first_chain(METADATA) + header.raw).hexdigest()


def noted_history(snapshots: Path) -> list[str]:
    """The identities of the history that snapshots note; empty: they note none. Raises LogError for another format."""
    try:
        return [str(each) for each in values_in((snapshots / NOTE).read_text(), snapshots / NOTE, LogError)["history"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_note(snapshots: Path, identities: Sequence[str]) -> None:
    """Note beside snapshots the history that they belong to. Raises OSError."""
    snapshots.mkdir(parents=True, exist_ok=True)
    write_whole(snapshots / NOTE, formatted({"history": identities}).encode() + b"\n", os.replace)


def require_own(snapshots: Path, data_dir: Path) -> None:
    """Check that snapshots are of the history in a data directory, as far as they note it. Raises LogError."""
    noted = noted_history(snapshots)
    if noted and noted[0] != root_of(data_dir):
        raise LogError(
            f"{snapshots} belongs to another history than {data_dir / 'log'}: move it away, or start the broker, which"
            " makes its own"
        )
