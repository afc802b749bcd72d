"""Seals are archived with what they seal, and come back with it (engine/keeping/archive/seals.py)."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.seals import sealer
from rewindmq.engine.keeping.seals.in_files import segmented
from rewindmq.engine.keeping.seals.seal import fingerprint
from rewindmq.engine.keeping.seals.sealer import check
from rewindmq.engine.log.embedded.log import EmbeddedLog
from tests.support.records import fill

KEY = Ed25519PrivateKey.generate()
KEYS = {fingerprint(KEY.public_key()): KEY.public_key()}


def write(data: Path, numbers: range) -> None:
    log = EmbeddedLog.open(data, 1)
    for partition in (log.metadata, *log.queues):
        fill(partition, numbers)
    log.close()


def seal(data: Path) -> None:
    for partition in segmented(data):
        list(sealer.seal(partition, KEY, 5_000))


def archived_seals(objects: Objects) -> list[str]:
    return [key.rpartition("/")[2] for key in objects.list("queues-0/seals")]


def test_seals_go_with_what_they_seal_and_come_back(objects: Objects, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data, range(100))
    seal(data)
    archiver = Archiver(objects, data)
    archiver.run()
    assert archived_seals(objects) == [], "nothing that is sealed is archived yet"
    close_segments(data)
    archiver.run()
    assert archived_seals(objects) == [f"{0:020d}.seal", f"{0:020d}.secret"]
    write(data, range(100, 150))
    seal(data)
    close_segments(data)
    archiver.run()
    Archiver(objects, data).run()
    assert [name for name in archived_seals(objects) if name.endswith(".seal")] == [
        f"{offset:020d}.seal" for offset in (0, 100)
    ]
    again = tmp_path / "again"
    recover(objects, again)
    assert not [each.harm for each in check(segmented(again), KEYS) if each.harm is not None]
    for partition in segmented(again):
        assert [stored.seal.next_offset for stored in partition.seals()[0]] == [100, 150]
        for path in (data / "log" / partition.name).glob("_*.se*"):
            back = again / "log" / partition.name / path.name
            assert back.read_bytes() == path.read_bytes()
            assert path.suffix != ".secret" or back.stat().st_mode & 0o777 == 0o600


def test_another_seal_of_the_same_stretch_is_refused(objects: Objects, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data, range(10))
    seal(data)
    close_segments(data)
    objects.create(f"queues-0/seals/{0:020d}.secret", b"others")
    with pytest.raises(ArchiveError, match="another seal than the one in the log is archived there"):
        Archiver(objects, data).run()
