"""The manifest of a trimmed history says where the history begins, and which objects no longer count."""

from dataclasses import replace

import pytest

from rewindmq.engine.keeping.archive.manifest import (
    BaseEntry,
    Manifest,
    OtherHistory,
    SnapshotEntry,
    StoredObject,
    TrimmedEntry,
)
from rewindmq.engine.keeping.archive.objects import Objects
from tests.support.archiving import segment_entry, snapshot_entry

CHAINS = {0: None, 10: bytes([1]) * 32, 20: bytes([11]) * 32, 30: bytes([21]) * 32}


def base(offset: int) -> BaseEntry:
    return BaseEntry(offset, StoredObject(f"{offset:020d}.base", 100, "e" * 64), 7)


def trimmed(offset: int, chain: bytes | None = None) -> TrimmedEntry:
    return TrimmedEntry(offset, chain or CHAINS.get(offset) or b"c" * 32, "d" * 64, 6, ("a finding",), "by law", 8)


def filled(objects: Objects) -> Manifest:
    """Three segments of ten records, two snapshots, and a base at 20."""
    manifest = Manifest.load(objects, "queues-0")
    for at in (0, 10, 20):
        manifest.extend(segment_entry(at, manifest.chain))
    for entry in (snapshot_entry(5), snapshot_entry(25)):
        manifest.extend(entry)
    manifest.extend(base(20))
    return manifest


def same(one: Manifest, other: Manifest) -> bool:
    return (one.entries, one.trimmed_keys, one.archived_bytes) == (
        other.entries,
        other.trimmed_keys,
        other.archived_bytes,
    )


def test_a_history_begins_at_the_last_trim(objects: Objects) -> None:
    manifest = filled(objects)
    assert (manifest.floor, manifest.trims) == (0, [])
    before = manifest.archived_bytes
    entry = manifest.extend(trimmed(20))
    assert (manifest.floor, manifest.trims) == (20, [entry])
    assert [each.base_offset for each in manifest.segments] == [20]
    assert ([each.offset for each in manifest.snapshots], [each.offset for each in manifest.bases]) == ([25], [20])
    assert (manifest.end, manifest.chain) == (30, CHAINS[30])
    folder = "queues-0/segments"
    assert manifest.trimmed_keys == {
        f"{folder}/{0:020d}.avro": 10,
        f"{folder}/{10:020d}.avro": 20,
        f"queues-0/snapshots/{5:020d}.snapshot": 6,
    }
    assert manifest.archived_bytes == before - 4 * 1_000 - 10
    loaded = Manifest.load(objects, "queues-0")
    assert same(loaded, manifest)
    assert loaded.trims[-1].findings == ("a finding",)
    manifest.extend(segment_entry(30, manifest.chain))
    assert manifest.end == 40


def test_all_that_is_archived_may_go(objects: Objects) -> None:
    manifest = filled(objects)
    manifest.extend(base(30))
    manifest.extend(trimmed(30))
    assert (manifest.segments, manifest.snapshots) == ([], [])
    assert (manifest.floor, manifest.end, manifest.chain) == (30, 30, CHAINS[30])
    manifest.extend(segment_entry(30, manifest.chain))
    assert Manifest.load(objects, "queues-0").end == 40


@pytest.mark.parametrize("begun", [False, True])
def test_a_trim_may_lie_behind_the_archived_end(begun: bool, objects: Objects) -> None:
    """The first archive of a history that was trimmed before, and the archive that was behind when it was trimmed."""
    manifest = filled(objects) if begun else Manifest.load(objects, "queues-0")
    manifest.extend(base(50))
    manifest.extend(trimmed(50))
    assert (manifest.floor, manifest.end, manifest.chain, manifest.max_timestamp_ms) == (50, 50, b"c" * 32, 0)
    manifest.extend(segment_entry(50, manifest.chain))
    loaded = Manifest.load(objects, "queues-0")
    assert same(loaded, manifest)
    assert (loaded.end, [each.base_offset for each in loaded.segments]) == (60, [50])
    with pytest.raises(OtherHistory, match="while the segments before end at 60"):
        loaded.extend(segment_entry(30, CHAINS[30] or b""))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (trimmed(10), "no base is archived there"),
        (trimmed(20, b"x" * 32), "no archived segment begins with its hash chain: another history"),
        (trimmed(25), "no archived segment begins with its hash chain"),
    ],
)
def test_a_trim_that_cannot_be_is_refused(entry: TrimmedEntry, why: str, objects: Objects) -> None:
    manifest = filled(objects)
    manifest.extend(base(25))
    with pytest.raises(OtherHistory, match=why):
        manifest.extend(entry)
    assert Manifest.load(objects, "queues-0").floor == 0


def test_a_floor_only_rises(objects: Objects) -> None:
    manifest = filled(objects)
    manifest.extend(base(10))
    manifest.extend(trimmed(20))
    with pytest.raises(OtherHistory, match="already begins at 20"):
        manifest.extend(trimmed(10))


def test_of_two_that_trim_one_adds_the_entry(objects: Objects) -> None:
    one = filled(objects)
    other = Manifest.load(objects, "queues-0")
    entry = one.extend(trimmed(20))
    assert other.extend(replace(trimmed(20), archived_ms=9)) == entry
    assert same(one, other)


def test_what_an_archiver_adds_that_missed_the_trim_counts_no_more(objects: Objects) -> None:
    late = filled(objects)
    Manifest.load(objects, "queues-0").extend(trimmed(20))
    late.extend(SnapshotEntry(15, StoredObject(f"{15:020d}.snapshot", 10, "d" * 64), 7))
    assert late.floor == 20
    assert [each.offset for each in late.snapshots] == [25]
    assert late.trimmed_keys[f"queues-0/snapshots/{15:020d}.snapshot"] == 16
    assert same(Manifest.load(objects, "queues-0"), late)
