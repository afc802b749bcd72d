"""The copy of a leader's log on this disk: the same segments, byte for byte, each block proven before it is written.

    DIR/log/...              as a broker's own (engine/log/embedded); an empty last segment of the leader is not copied
    DIR/follower.json        {"leader": URL, "instance": which copy this is}; engine/log/embedded/roles.py
    DIR/follower.moment      the synced end of each partition, and the last moment that is here as a whole; twice

    copy.add(pieces, target)         written and synced
    copy.has(target)                 the moment is here, and noted: the next question acknowledges it

- Many blocks are synced at once, and a power cut may leave any of them torn. So an opened copy drops what is behind the
  synced ends, and fetches it again.
- Partitions are written one after another. A crash in between leaves some of them ahead of the last moment. A promotion
  goes back to that moment, which is all that was ever acknowledged.
- The ends are synced in the slot that does not have the last ones, so a torn write costs at most the newest, and those
  were not acknowledged.
"""

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from rewindmq.engine.keeping.cut_back import drop_behind
from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition, read_layout
from rewindmq.engine.log.embedded.ends import End, ends_in, ends_out
from rewindmq.engine.log.embedded.raw_blocks import proven_blocks, proven_header
from rewindmq.engine.log.embedded.segments import (
    Header,
    parse_header,
    read_at,
    segment_files,
    segment_path,
    write_at,
)
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.projections import system_calls
from rewindmq.projections.store.bases import Bases
from rewindmq.schemas.formats import other_magic

MOMENT = "follower.moment"
_UNBOUNDED = 1 << 62  # bytes of a segment: the leader decides where one ends
_HEADER_BYTES = 1 << 20


class PartitionCopy:
    """One partition of the copy. `end`: of the last block, synced."""

    def __init__(self, directory: Path) -> None:
        """Raises CorruptLog, LogError."""
        self.directory = directory
        self.name = directory.name
        begin = End(0, 0, 0, first_chain(self.name))
        bases = Bases(directory.parent.parent / "bases")
        if not segment_files(directory) and (offsets := bases.offsets(self.name)):
            base = bases.open(self.name, offsets[-1])
            begin = End(base.offset, 0, base.offset, base.chain)
        self._writer = PartitionWriter(directory, _UNBOUNDED, begin=False, copied_from=begin)
        self._header: Header | None = None

    @property
    def end(self) -> End:
        return self._writer.end

    def add(self, base: int, position: int, data: bytes) -> int:
        """Add stored bytes of the leader, durably. A block that is cut off at the end is left out.

        Returns how many bytes have to come at once, because a block did not fit, or 0. Raises CorruptLog: the bytes do
        not belong here. LogError, OSError: nothing was added."""
        path = segment_path(self.directory, base)
        end, before = self.end, 0
        if position == 0 and base == end.offset:
            self._header = proven_header(data, self.directory, end)
            self._writer.begin_copied(self._header)
            before = len(self._header.raw)
            data = data[before:]
        elif (base, position) != (end.base, end.position):
            raise CorruptLog(path, position, end.offset, f"the leader sent other bytes than were asked for ({end})")
        if self._header is None or self._header.base_offset != base:
            self._header = header_of(path)
        blocks = proven_blocks(data, self._writer.place, self._header, path)
        if not blocks.entries:
            return before + blocks.needed
        self._writer.add_copied(data[: blocks.size], blocks.entries, blocks.lengths)
        return 0

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


class LogCopy:
    """All partitions of the copy."""

    def __init__(self, data_dir: Path) -> None:
        """Raises CorruptLog, LogError, OSError."""
        names = [METADATA, *map(queue_partition, range(read_layout(data_dir)))]
        self.partitions: dict[str, PartitionCopy] = {}
        self._moments = Moments(data_dir)
        for name, end in self._moments.synced.items():
            drop_behind(partition_directory(data_dir, name), end)
        self._writing = threading.Lock()
        self._closed = False
        try:
            for name in names:
                self.partitions[name] = PartitionCopy(partition_directory(data_dir, name))
        except BaseException:
            self.close()
            raise

    @property
    def ends(self) -> dict[str, End]:
        """The end of each partition."""
        return {name: partition.end for name, partition in self.partitions.items()}

    @property
    def moment(self) -> dict[str, End] | None:
        """The last moment that is here as a whole."""
        return self._moments.moment

    def add(self, pieces: Iterable[tuple[str, int, int, bytes]], target: Mapping[str, int]) -> int:
        """Add bytes of the leader, and note the moment `target` if it is here then. All of it is durable.

        Returns the size of a block that was larger than its piece, or 0. Raises as `PartitionCopy.add`."""
        with self._writing:
            return 0 if self._closed else self._add(pieces, target)

    def _add(self, pieces: Iterable[tuple[str, int, int, bytes]], target: Mapping[str, int]) -> int:
        needed = 0
        for name, base, position, data in pieces:
            if name not in self.partitions:
                raise LogError(f"the leader has a partition {name}, which is not in the layout here")
            needed = max(needed, self.partitions[name].add(base, position, data))
        ends = self.ends
        moment = ends if self.has(target) else self._moments.moment
        if (ends, moment) != (self._moments.synced, self._moments.moment):
            self._moments.save(ends, moment)
        return needed

    def has(self, target: Mapping[str, int]) -> bool:
        """Return True if the copy ends at the moment `target`."""
        return all(self.partitions[name].end.offset == offset for name, offset in target.items())

    def close(self) -> None:
        """Close the files. It waits for a thread that adds bytes."""
        with self._writing:
            self._closed = True
            for partition in self.partitions.values():
                partition.close()
            self._moments.close()


class Moments:
    """The file of the synced ends and of the last whole moment. `moment`: None: there was none yet."""

    def __init__(self, data_dir: Path) -> None:
        """Raises LogError for another format; OSError."""
        path = data_dir / MOMENT
        new = not path.exists()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if new:
            system_calls.sync_directory(data_dir)
        found_magic = read_at(self._descriptor, len(_MAGIC), 0)
        if (other := other_magic(found_magic, _MAGIC)) is not None:
            os.close(self._descriptor)
            raise LogError(f"{path}: {other}")
        if found_magic != _MAGIC:  # it is new, or a crash left it so
            write_at(self._descriptor, _MAGIC, 0)
        found = max((self._slot(0), self._slot(1)), key=lambda slot: int(slot.get("number", 0)))
        self._number: int = found.get("number", 0)
        self.synced = ends_in(found.get("synced") or {})
        self.moment = None if found.get("moment") is None else ends_in(found["moment"])

    def save(self, synced: Mapping[str, End], moment: Mapping[str, End] | None) -> None:
        """Note both, durably. Raises OSError."""
        number = self._number + 1
        content = {
            "number": number,
            "synced": ends_out(synced),
            "moment": None if moment is None else ends_out(moment),
        }
        body = json.dumps(content, allow_nan=False).encode()
        assert len(body) + 8 <= _SLOT_BYTES
        raw = len(body).to_bytes(4, "big") + crc32(body).to_bytes(4, "big") + body
        write_at(self._descriptor, raw, _slot_at(number % 2))
        system_calls.sync_data(self._descriptor)
        self._number, self.synced = number, dict(synced)
        self.moment = None if moment is None else dict(moment)

    def _slot(self, which: int) -> dict[str, Any]:
        head = read_at(self._descriptor, 8, _slot_at(which))
        size = int.from_bytes(head[:4], "big")
        body = read_at(self._descriptor, min(size, _SLOT_BYTES), _slot_at(which) + 8)
        if not size or len(body) != size or crc32(body) != int.from_bytes(head[4:], "big"):
            return {}
        found: dict[str, Any] = json.loads(body)
        return found

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


_MAGIC = b"rwmqmom1"
_SLOT_BYTES = 1 << 19  # for the 1,024 partitions that a log has at most


def _slot_at(which: int) -> int:
    """Return the byte at which a slot begins."""
    return len(_MAGIC) + which * _SLOT_BYTES


def header_of(path: Path) -> Header:
    """Return the header of a segment that is here."""
    with path.open("rb") as file:
        return parse_header(file.read(_HEADER_BYTES))
