"""Damages a log from a seed, as a power cut or a bad disk does, and checks the opening of it.

    python -m tests.support.torn 10000            # so many seeds from 0 on; prints the results of each kind of damage

A partition is written, with the last block not synced, or all. Then one of these happens:

    torn         sectors (512 or 4,096 bytes) of the last block are zeros, or missing from some byte on
    older        sectors of the last block hold bytes from elsewhere in the file, or of a former life of the file
    stale        a whole block of this file, or of a former life of it, stands in the place of the last one
    misdirected  a block of another partition or another segment stands there, or over an earlier block
    flipped      one bit, anywhere in the durable part

Either the log opens with the records that were written, in their order, from the first to the last durable one (and
maybe those of the block that was not synced). Or the log is refused, with file and offset. There is never another
record, and never one twice. After a torn or older block it must open. Readers beside it see the same records.
"""

import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.index import ENTRY, index_path, lengths_path
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.engine.log.embedded.writer import PartitionWriter
from tests.support.records import START_MS, record

KINDS = ("torn", "older", "stale", "misdirected", "flipped")
Group = list[bytes]


@dataclass
class Original:
    """A partition as it was written.

    `durable`: its files without the last block, `whole`: with it."""

    directory: Path
    groups: list[Group]
    durable: dict[str, bytes] = field(default_factory=dict)
    whole: dict[str, bytes] = field(default_factory=dict)

    @property
    def last(self) -> str:
        return max(name for name in self.whole if name.endswith(".avro"))

    @property
    def synced(self) -> bytes:
        """The last segment without the last block."""
        return self.durable[self.last]


def groups(chance: random.Random, count: int, life: int) -> list[Group]:
    """Records with their number and their life, of all sizes: some groups are larger than a stored block."""
    found = []
    number = 0
    for _ in range(count):
        size = chance.choice((0, 0, 30, 300, 3_000, 70_000) if chance.random() < 0.1 else (0, 30, 300, 1_500))
        group = []
        for _ in range(chance.randint(1, 9)):
            body = size if size < 10_000 else chance.randint(1, size)
            group.append(record(number, START_MS + number + 100_000 * life, body))
            number += 1
        found.append(group)
    return found


def write_log(directory: Path, written: list[Group], segment_bytes: int) -> Original:
    directory.mkdir(parents=True)
    original = Original(directory, written)
    writer = PartitionWriter(directory, segment_bytes, begin=True)
    for number, group in enumerate(written):
        if number == len(written) - 1:
            original.durable = {path.name: path.read_bytes() for path in directory.iterdir()}
        writer.write(group, START_MS)
    writer.close()
    original.whole = {path.name: path.read_bytes() for path in directory.iterdir()}
    if original.last not in original.durable:  # the last block began a segment, whose header was synced before
        original.durable[original.last] = header_of(directory / original.last)
    return original


def header_of(path: Path) -> bytes:
    first = next(block for block in PartitionReader(path.parent).read() if block.file == path)
    return path.read_bytes()[: first.position]


def again(original: Original, written: list[Group], whole: bool = False) -> bytes:
    """The last segment as another life of the file would have it.

    It has the same header, and other blocks behind `synced` (or all `whole`)."""
    directory = original.directory.with_name("life") / original.directory.name
    directory.mkdir(parents=True)
    base = header_of(original.directory / original.last) if whole else original.synced
    for name, content in original.durable.items():
        if name.endswith(".avro"):
            (directory / name).write_bytes(base if name == original.last else content)
    writer = PartitionWriter(directory, 1 << 30, begin=False)
    for group in written:
        writer.write(group, START_MS)
    writer.close()
    content = (directory / original.last).read_bytes()
    shutil.rmtree(directory.parent)
    return content


def sectors_lost(chance: random.Random, original: Original, fill: bytes) -> bytes:
    """The last segment with some sectors of its last block replaced by those of `fill`, zeros beyond its end."""
    size = chance.choice((512, 4_096))
    content = bytearray(original.whole[original.last])
    start, end = len(original.synced), len(content)
    if chance.random() < 0.3:
        end = chance.randint(start, end)
        del content[end:]
    sectors = list(range(start // size, -(-end // size)))
    lost = [sector for sector in sectors if chance.random() < 0.5] or sectors[-1:]
    for sector in lost:
        first, behind = max(start, sector * size), min(end, (sector + 1) * size)
        content[first:behind] = fill[first:behind].ljust(behind - first, b"\0")
    return bytes(content)


def block_bytes(original: Original) -> list[tuple[Path, int, bytes]]:
    """(file, position, bytes) of each block as stored."""
    found = list(PartitionReader(original.directory).read())
    stored = []
    for number, block in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) and found[number + 1].file == block.file else None
        content = (original.directory / block.file.name).read_bytes()
        stored.append((block.file, block.position, content[block.position : after.position if after else None]))
    return stored


def damage(chance: random.Random, kind: str, original: Original) -> tuple[dict[str, bytes], list[list[Group]]]:
    """The segments after it, and each sequence of groups that opening them may find."""
    files = {name: content for name, content in original.whole.items() if name.endswith(".avro")}
    durable, last = original.groups[:-1], original.last
    may = [durable, original.groups]
    if kind == "torn":
        files[last] = sectors_lost(chance, original, b"")
    elif kind == "older":
        if chance.random() < 0.5:
            shift = chance.randrange(1, len(original.synced)) if chance.random() < 0.5 else 512 * chance.randint(1, 8)
            fill = bytes(shift) + original.whole[last]
        else:
            other = groups(chance, len(original.groups), 1)[-1]
            fill = again(original, [other])
            may.append([*durable, other])
        files[last] = sectors_lost(chance, original, fill)
    elif kind == "stale":
        mine = [raw for path, _, raw in block_bytes(original) if path.name == last][:-1]
        if mine and chance.random() < 0.5:
            files[last] = original.synced + chance.choice(mine)
        elif mine:  # the blocks before were others in that life, with as many records
            sizes = [len(group) for group in original.groups[-len(mine) - 1 :]]
            number = sum(map(len, original.groups)) - sum(sizes)
            earlier: list[Group] = []
            for size in sizes:
                earlier.append([record(number + n, START_MS + 900_000 + number + n, 40) for n in range(size)])
                number += size
            life = Original(original.directory, earlier, {}, {last: again(original, earlier, whole=True)})
            files[last] = original.synced + last_block(life, last, len(earlier[-1]))
        else:
            files[last] = original.synced + original.whole[last][len(original.synced) :] * 2
    elif kind == "misdirected":
        foreign = write_log(original.directory.with_name("queues-7"), groups(chance, len(original.groups), 2), 1 << 30)
        block = chance.choice(block_bytes(foreign))[2]
        shutil.rmtree(foreign.directory)
        if chance.random() < 0.5:
            files[last] = original.synced + block
        else:
            path, position, _ = chance.choice(block_bytes(original)[:-1])
            content = files[path.name]
            files[path.name] = content[:position] + block + content[position + len(block) :]
    else:
        name = chance.choice(sorted(files))
        harmed = bytearray(files[name])
        at = chance.randrange(len(harmed))
        harmed[at] ^= 1 << chance.randrange(8)
        files[name] = bytes(harmed)
        if name != last:  # of the last block, nothing may say that it was durable
            may.remove(durable)
    return files, may


def last_block(life: Original, name: str, records: int) -> bytes:
    """The last block of a segment that stands in no directory.

    Its blocks end where its sync marker is, and the last has so many."""
    content = life.whole[name]
    sync = content[-16:]
    start = content.rindex(sync, 0, len(content) - 16) + 16
    assert content[start] >> 1 == records
    return content[start:]


def run(seed: int, directory: Path) -> tuple[str, str]:
    """Run one case, in a directory of its own. Returns the kind and the result.

    Raises AssertionError if the result is wrong."""
    chance = random.Random(seed)
    kind = chance.choice(KINDS)
    original = write_log(
        directory / "queues-0", groups(chance, chance.randint(2, 7), 0), chance.choice((5_000, 9_000, 1 << 30))
    )
    files, may = damage(chance, kind, original)
    synced = chance.random() < 0.2 and kind not in ("torn", "older")
    for name, content in files.items():
        (original.directory / name).write_bytes(content)
        for sidecar in (index_path(original.directory / name), lengths_path(original.directory / name)):
            if chance.random() < 0.3:
                sidecar.unlink()
            elif name == original.last and not synced and sidecar.suffix == ".index":
                sidecar.write_bytes(sidecar.read_bytes()[: -ENTRY.size])
    outcome = judged(original, kind, may)
    shutil.rmtree(directory)
    return kind, outcome


def judged(original: Original, kind: str, may: list[list[Group]]) -> str:
    wanted = [[record for group in each for record in group] for each in may]
    refused: LogError | None = None
    seen: list[bytes] = []
    try:
        for block in PartitionReader(original.directory).read():
            seen += block.records
        assert seen in wanted, f"a reader beside it found {len(seen)} records, which were not written"
    except LogError as error:
        refused = error
        assert any(each[: len(seen)] == seen for each in wanted), "a reader beside it found other records"
    try:
        writer = PartitionWriter(original.directory, 1 << 30, begin=False)
    except LogError as error:
        if refused is None:
            raise AssertionError(f"a start refused what a reader read: {error}") from error
        refused = error
    else:
        writer.write([record(999_999)], START_MS)
        writer.close()
        if refused is None:
            went_on = [record for block in PartitionReader(original.directory).read() for record in block.records]
            assert went_on == [*seen, record(999_999)]
            verified = list(verify_chain(original.directory))
            assert sum(each.records for each in verified) == len(went_on)
    if refused is None:
        return "cut" if len(seen) < len(max(wanted, key=len)) else "whole"
    assert kind not in ("torn", "older"), f"a torn end was refused: {refused}"
    assert str(original.directory) in str(refused)
    if isinstance(refused, CorruptLog):
        assert refused.file.parent == original.directory
        assert refused.offset <= sum(map(len, original.groups))
    else:  # a bit of its header
        assert kind == "flipped"
    return "refused"


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    shm = Path("/dev/shm")
    outcomes: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as directory:
        for seed in range(seeds):
            try:
                outcomes[run(seed, Path(directory) / str(seed))] += 1
            except Exception:
                print(f"seed {seed}", file=sys.stderr)
                raise
    for (kind, outcome), count in sorted(outcomes.items()):
        print(f"{kind:12} {outcome:8} {count:7,}")


if __name__ == "__main__":
    import logging

    logging.disable(logging.ERROR)
    main()
