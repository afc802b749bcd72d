"""Seals in the archive: a copy of each seal and of its opening, once all its records are archived.

    PARTITION/seals/BASE20.seal, BASE20.secret

A seal proves itself by its signature, so no entry of the manifest names it. Like every object, it is created once and
never replaced, and it is read back before it counts as archived. A damaged seal is left to `verify_seals`.
"""

from collections.abc import Iterator
from pathlib import Path

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects
from rewindmq.engine.keeping.seals.seal import BadSeal, parsed_line
from rewindmq.engine.log.whole_file import OWNER_ALONE

SUFFIXES = (".secret", ".seal")  # a seal counts once its opening is there


def archive_seals(manifest: Manifest, directory: Path, after: str = "") -> str:
    """Archive the unarchived seals of a partition.

    `after`: the key of a seal that is known to be archived with all earlier ones, because seals are archived in order.
    Returns the key of the last one. Raises ArchiveError, NoAnswer, OSError."""
    partition, objects = manifest.partition, manifest.objects
    local = [path for path in sorted(directory.glob("_*.seal")) if _key(partition, path, ".seal") > after]
    if not local:
        return after
    after = max((key for key in objects.list(seals_folder(partition), after) if key.endswith(".seal")), default=after)
    for path in local:
        if _key(partition, path, ".seal") <= after:
            continue
        content = path.read_bytes()
        try:
            end = parsed_line(content, str(path)).seal.next_offset
        except BadSeal:
            continue
        if end > manifest.end:
            break
        for suffix in SUFFIXES:
            file = path.with_suffix(suffix)
            if file.exists():  # `verify_seals` reports a missing secret
                create_seal(objects, _key(partition, path, suffix), file.read_bytes())
        after = _key(partition, path, ".seal")
    return after


def recover_seals(manifest: Manifest, directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of a partition's archived seals that are not in the directory, with their content.

    The caller writes each before it requests the next; then only the owner may read a secret.

    Raises ArchiveError, NoAnswer."""
    for key in manifest.objects.list(seals_folder(manifest.partition)):
        path = directory / f"_{key.rpartition('/')[2]}"
        if path.suffix in SUFFIXES and not path.exists():
            yield path, manifest.objects.get(key)
            if path.suffix == ".secret":
                path.chmod(OWNER_ALONE)


def create_seal(objects: Objects, key: str, content: bytes) -> None:
    """Create an object, or check that it already exists unchanged.

    Raises ArchiveError."""
    objects.create(key, content)
    if objects.get(key) != content:
        raise ArchiveError(f"{objects.place(key)}: another seal than the one in the log is archived there")


def seals_folder(partition: str) -> str:
    return f"{partition}/seals"


def _key(partition: str, path: Path, suffix: str) -> str:
    return f"{seals_folder(partition)}/{path.stem.removeprefix('_')}{suffix}"
