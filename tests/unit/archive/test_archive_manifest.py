"""The manifest is only ever extended; what was changed in it, or taken out of it, is found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.descriptions import decode_checked, encode_checked
from rewindmq.engine.keeping.archive.identity import IDENTITY, HistoryIdentity, read_identity, require_identity
from rewindmq.engine.keeping.archive.manifest import (
    Manifest,
    OtherHistory,
)
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects
from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.embedded.directory import METADATA
from tests.support.archiving import segment_entry, snapshot_entry

IDENTITY_HERE = HistoryIdentity("ab" * 32, 2)


def filled(objects: Objects) -> Manifest:
    """Three segments and a snapshot."""
    manifest = Manifest.load(objects, "queues-0")
    for base in (0, 10, 20):
        manifest.extend(segment_entry(base, manifest.chain))
    manifest.extend(snapshot_entry(15))
    return manifest


def entry_path(objects: Objects, number: int) -> Path:
    return Path(objects.url.removeprefix("file://")) / f"queues-0/manifest/{number:010d}.json"


def test_entries_come_back_as_they_were(objects: Objects) -> None:
    written = filled(objects)
    loaded = Manifest.load(objects, "queues-0")
    assert (loaded.segments, loaded.snapshots) == (written.segments, written.snapshots)
    assert [entry.number for entry in loaded.segments] == [0, 1, 2]
    assert [entry.number for entry in loaded.snapshots] == [3]
    assert (loaded.end, loaded.chain, loaded.max_timestamp_ms) == (30, bytes([21]) * 32, 6)
    assert json.loads(entry_path(objects, 0).read_text())["kind"] == "segment"


def test_a_partition_without_entries_begins_at_its_name(objects: Objects) -> None:
    manifest = Manifest.load(objects, "queues-7")
    assert (manifest.end, manifest.chain) == (0, first_chain("queues-7"))


def test_new_entries_are_read(objects: Objects) -> None:
    reader, writer = Manifest.load(objects, "queues-0"), filled(objects)
    reader.refresh()
    assert reader.segments == writer.segments
    writer.extend(segment_entry(30, writer.chain))
    reader.refresh()
    assert reader.end == 40


def test_two_archivers_of_one_history_make_one_manifest(objects: Objects) -> None:
    one, other = Manifest.load(objects, "queues-0"), Manifest.load(objects, "queues-0")
    for base in (0, 10):
        first = one.extend(segment_entry(base, one.chain))
        assert other.extend(replace(segment_entry(base, other.chain), archived_ms=9)) == first
    one.extend(snapshot_entry(15))
    assert other.extend(segment_entry(20, other.chain)).number == 3
    assert other.snapshots == one.snapshots
    assert one.extend(segment_entry(20, one.chain)) == other.segments[-1]
    assert other.extend(snapshot_entry(25)) == one.extend(snapshot_entry(25))
    loaded = Manifest.load(objects, "queues-0")
    assert (loaded.segments, loaded.snapshots) == (other.segments, other.snapshots)
    assert [each.number for each in loaded.snapshots] == [2, 4]


def test_an_archiver_of_another_history_is_stopped(objects: Objects) -> None:
    one, other = Manifest.load(objects, "queues-0"), Manifest.load(objects, "queues-0")
    one.extend(segment_entry(0, one.chain))
    with pytest.raises(OtherHistory, match=r"0000000001\.json: its segment does not continue the last one"):
        other.extend(segment_entry(0, other.chain, bytes(32)))


def test_an_entry_that_is_gone_is_named(objects: Objects) -> None:
    filled(objects)
    entry_path(objects, 1).unlink()
    with pytest.raises(ArchiveError, match=r"0000000001\.json: this entry is gone"):
        Manifest.load(objects, "queues-0")


def test_a_listing_beside_the_archiver_may_miss_an_entry(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is listed while entries come may show the second of two new ones only."""
    filled(objects)
    every = list(objects.list("queues-0/manifest"))
    listings = iter([[every[0], *every[2:]]])
    listed = objects.list
    monkeypatch.setattr(objects, "list", lambda prefix, after="": iter(next(listings, None) or listed(prefix, after)))
    assert len(Manifest.load(objects, "queues-0").segments) == 3
    assert next(listings, None) is None


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_changed_entry_is_named(number: int, objects: Objects) -> None:
    filled(objects)
    path = entry_path(objects, number)
    path.write_text(path.read_text().replace("1000", "1001"))
    with pytest.raises(
        ArchiveError, match=rf"{number:010d}\.json: not an entry of a manifest .*its check does not match"
    ):
        Manifest.load(objects, "queues-0")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_entry_that_was_made_anew_is_named(number: int, objects: Objects) -> None:
    filled(objects)
    path = entry_path(objects, number)
    values = decode_checked(path.read_bytes(), str(path))
    path.write_bytes(encode_checked(values | {"archived_ms": 8}))
    with pytest.raises(ArchiveError, match=rf"{number + 1:010d}\.json: it does not continue the entry before it"):
        Manifest.load(objects, "queues-0")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"kind": "segment"}', '{"kind": "x"}', '{"kind": []}', "\xff"])
def test_an_entry_that_is_none_is_named(text: str, objects: Objects) -> None:
    filled(objects)
    entry_path(objects, 3).write_text(text)
    with pytest.raises(ArchiveError, match=r"0000000003\.json: not an entry of a manifest"):
        Manifest.load(objects, "queues-0")


@pytest.mark.parametrize("name", ["base_offset", "chain", "avro", "size_bytes", "number"])
def test_a_value_of_the_wrong_kind_is_named(name: str, objects: Objects) -> None:
    filled(objects)
    values = json.loads(entry_path(objects, 0).read_text())
    wrong: object
    for wrong in (None, "x", {}, []):
        entry_path(objects, 0).write_text(json.dumps({**values, name: wrong}))
        with pytest.raises(ArchiveError, match=r"0000000000\.json: not an entry of a manifest"):
            Manifest.load(objects, "queues-0")


def test_a_segment_that_does_not_follow_is_refused(objects: Objects) -> None:
    manifest = filled(objects)
    for wrong in (segment_entry(31, manifest.chain), segment_entry(30, bytes(32))):
        with pytest.raises(ArchiveError):
            Manifest.load(objects, "queues-0").extend(wrong)
    assert Manifest.load(objects, "queues-0").end == 30


def test_an_entry_that_the_store_has_changed_is_found_at_once(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = filled(objects)
    create = Objects.create
    monkeypatch.setattr(Objects, "create", lambda self, key, data: create(self, key, data.replace(b"99", b"98")))
    with pytest.raises(ArchiveError, match=r"0000000004\.json: not the entry that was sent: delete it and run again"):
        manifest.extend(segment_entry(30, manifest.chain))
    monkeypatch.undo()
    with pytest.raises(ArchiveError, match=r"0000000004\.json: not an entry of a manifest"):
        Manifest.load(objects, "queues-0")
    entry_path(objects, 4).unlink()
    Manifest.load(objects, "queues-0").extend(segment_entry(30, manifest.chain))
    assert Manifest.load(objects, "queues-0").end == 40


def test_an_archive_is_of_one_history(objects: Objects) -> None:
    assert read_identity(objects) is None
    require_identity(objects, IDENTITY_HERE)
    require_identity(objects, IDENTITY_HERE)
    assert read_identity(objects) == IDENTITY_HERE
    with pytest.raises(OtherHistory, match="the archive of another history"):
        require_identity(objects, HistoryIdentity("cd" * 32, 2))


def test_an_archive_grows_with_its_history(objects: Objects) -> None:
    require_identity(objects, IDENTITY_HERE)
    grown = replace(IDENTITY_HERE, queue_partitions=5)
    one, other = Manifest.load(objects, METADATA), Manifest.load(objects, METADATA)
    require_identity(objects, grown, one)
    require_identity(objects, grown, other)  # another archiver, which had read it before
    assert (one.queue_partitions, other.queue_partitions) == (5, 5)
    assert list(objects.list(f"{METADATA}/manifest")) == [f"{METADATA}/manifest/0000000000.json"]
    found = read_identity(objects)
    assert found == grown
    assert found.begun_with == 2
    with pytest.raises(OtherHistory, match="the archive of another history"):
        require_identity(objects, IDENTITY_HERE)  # an older copy of the history, or a program that began before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "history": "", "queue_partitions": 1, "log": "x"}'])
def test_a_damaged_identity_is_named(text: str, objects: Objects) -> None:
    objects.create(IDENTITY, text.encode())
    with pytest.raises(ArchiveError, match=r"archive\.json"):
        read_identity(objects)
