"""Data directories with an archive, for tests of trims: copies, what is left, what is proven."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.local_space import SpaceLimits, keep_local
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rewind import At, state_at
from tests.support.trimming import PARTITION, starts


@dataclass(frozen=True, slots=True)
class Place:
    """A data directory, and its archive."""

    data: Path
    objects: Objects

    @property
    def manifest(self) -> Manifest:
        return Manifest.load(self.objects, PARTITION)

    @property
    def keys(self) -> set[str]:
        """The objects of the partition that entries can name."""
        folders = [f"{PARTITION}/{each}" for each in ("segments", "snapshots", "bases")]
        return {key for each in folders for key in self.objects.list(each)}


def copied(place: Place, to: Path) -> Place:
    shutil.copytree(place.data, to / "data", ignore=shutil.ignore_patterns("_reserve"))
    shutil.copytree(place.objects.url.removeprefix("file://"), to / "archive")
    objects = open_objects(str(to / "archive"))
    note_archive(to / "data", objects.url)
    return Place(to / "data", objects)


def assert_trimmed(place: Place, floor: int) -> None:
    """The archive begins at the floor, is whole, and has nothing below it."""
    manifest = place.manifest
    assert manifest.floor == floor
    assert [each.base_offset for each in manifest.segments][:1] in ([floor], [])
    assert not place.keys & manifest.trimmed_keys.keys()
    assert [error for _, error in verify(place.objects, PARTITION) if error is not None] == []


def digest(log: PartitionLog, offset: int) -> str:
    return state_at(log, None, At(offset=offset)).digest()


def cut_locally(place: Place) -> int:
    """Remove what may be removed here. Returns the local start."""
    keep_local(place.data, place.objects, SpaceLimits(size_bytes=1))
    return starts(place.data)[0]
