"""Seals of a log in Kafka in the archive: a copy of each seal and of its opening, once its records are archived.

    PARTITION/seals/BASE20-DIGEST16.seal, BASE20-DIGEST16.secret

As with the seals of a directory (seals.py), no entry names them, because a seal proves itself by its signature. Two
sealers may seal the same stretch at once, so the digest of the seal is part of the name. A record of the topic that is
not a seal is left out. `recover` writes the archived seals into the topic of the new history.
"""

from collections.abc import Iterator, Mapping

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import ArchiveError, MissingObject, Objects
from rewindmq.engine.keeping.archive.seals import create_seal, seals_folder
from rewindmq.engine.keeping.seals.in_topic import ChainTopic
from rewindmq.engine.keeping.seals.seal import BadSeal, StoredSeal, parsed_line
from rewindmq.engine.log.kafka.reader import KafkaLogReader


class TopicSeals:
    """The seals of topics, read once each by an archiver that runs repeatedly."""

    def __init__(self, log: KafkaLogReader) -> None:
        self._chain = ChainTopic(log)
        self._read_to = 0  # offset in the topic of the seals
        self._waiting: list[StoredSeal] = []
        self._there: dict[str, set[str]] = {}  # names of the archived objects, by partition

    def archive(self, manifests: Mapping[str, Manifest]) -> None:
        """Archive the unarchived seals of these partitions.

        Raises ArchiveError, LogError, NoAnswer."""
        if not self._chain.exists:
            return
        found, _, self._read_to = self._chain.seals_from(self._read_to)
        self._waiting += found
        waiting = []
        for stored in self._waiting:
            manifest = manifests.get(stored.seal.partition)
            if manifest is None or stored.seal.next_offset > manifest.end:
                waiting.append(stored)
            else:
                self._archive(manifest.objects, stored)
        self._waiting = waiting

    def _archive(self, objects: Objects, stored: StoredSeal) -> None:
        folder = seals_folder(stored.seal.partition)
        if folder not in self._there:
            self._there[folder] = set(objects.list(folder))
        name = f"{folder}/{stored.seal.base_offset:020d}-{stored.seal.digest[:16]}"
        if f"{name}.seal" in self._there[folder]:
            return
        opening = self._chain.opening(stored)
        if opening:
            create_seal(objects, f"{name}.secret", opening)
        create_seal(objects, f"{name}.seal", stored.public.line.encode())
        self._there[folder].add(f"{name}.seal")


def recover_topic_seals(objects: Objects, log: KafkaLogReader, ends: Mapping[str, int]) -> int:
    """Write the missing archived seals into the topic of the seals, and return their number.

    `ends`: the ends of the partitions; seals beyond them are left out. Raises ArchiveError, LogError, NoAnswer."""
    chain = ChainTopic(log)
    there = {stored.seal.digest for stored in chain.seals[0]}
    count = 0
    for partition in (log.metadata, *log.queues):
        for stored, opening in sorted(_archived(objects, partition.name), key=lambda each: each[0].seal.next_offset):
            if stored.seal.digest not in there and stored.seal.next_offset <= ends[partition.name]:
                chain.append(stored, opening)
                count += 1
    return count


def _archived(objects: Objects, partition: str) -> Iterator[tuple[StoredSeal, bytes]]:
    """Yield the archived seals of a partition with their openings, which are empty if they are gone."""
    for key in objects.list(seals_folder(partition)):
        if not key.endswith(".seal"):
            continue
        try:
            stored = parsed_line(objects.get(key), objects.place(key))
        except BadSeal as error:
            raise ArchiveError(str(error)) from None
        try:
            opening = objects.get(f"{key.removesuffix('.seal')}.secret")
        except MissingObject:
            opening = b""
        yield stored, opening
