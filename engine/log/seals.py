"""Seals: signed statements about the segments of an embedded log, which need no broker to be checked.

    _<base offset>.seal     {"seal": {partition, base_offset, next_offset, root, chain, previous, time_ms},
                             "key", "signature"}

- `root` is the Merkle root over the records base_offset .. next_offset - 1 (merkle.py), `chain` the hash chain behind
  the last of them, `previous` the SHA-256 of the seal before in the same partition. So one seal stands for all the
  history of its partition up to there: whoever has a copy of it can tell if anything was changed, or taken away.
- The signature is Ed25519 over the seal as canonical JSON; `key` is the SHA-256 of the public key, to tell keys apart.
- The last segment is sealed as far as it goes, and again when there is more of it. A seal is written whole or not.
- A proof is the record, its path to the root, and the seal: enough for somebody who has nothing but the public key.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from engine.log.base import LogError
from engine.log.directory import METADATA, partition_directory, queue_partition, read_layout
from engine.log.index import first_chain
from engine.log.merkle import Tree, leaf_hash, proof, root_of
from engine.log.reader import Place, SegmentReader, check_joint
from engine.log.segments import base_offset_of, segment_files, sync_directory


class BadSeal(Exception):
    """A seal, a proof or a key is not what it has to be; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Seal:
    """`digest`: by which the next one names it. Offsets as in a range: the end is exclusive."""

    partition: str
    base_offset: int
    next_offset: int
    root: str
    chain: str
    previous: str
    time_ms: int

    @property
    def statement(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.statement).hexdigest()


def private_key(path: Path) -> Ed25519PrivateKey:
    """BadSeal, OSError."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadSeal(f"{path}: no private key in PEM without a password: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadSeal(f"{path}: not an Ed25519 key: make one with 'openssl genpkey -algorithm ed25519'")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """BadSeal, OSError."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadSeal(f"{path}: no public key in PEM: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BadSeal(f"{path}: not an Ed25519 key")
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def seal_path(segment: Path) -> Path:
    return segment.with_name(f"_{segment.stem}.seal")


def partitions(data_dir: Path) -> list[Path]:
    """LogError when there is no log."""
    names = (METADATA, *map(queue_partition, range(read_layout(data_dir))))
    return [partition_directory(data_dir, name) for name in names]


# -- sealing -----------------------------------------------------------------------------------------------------------


def seal(data_dir: Path, key: Ed25519PrivateKey, now_ms: int) -> Iterator[Seal]:
    """Seal what is not sealed yet; the new seals. Safe beside a running broker. CorruptLog, LogError, BadSeal."""
    for directory in partitions(data_dir):
        previous, before = "", Place(0, 0, first_chain(directory.name), 0)
        files = segment_files(directory)
        for path in files:
            segment = SegmentReader(path, path == files[-1])
            try:
                check_joint(segment, before)
                stored = _stored(path)
                there = None if stored is None else stored[0]
                end = segment.indexed_end()
                if there is None or end is None or there.next_offset != end.offset:
                    tree = _tree(segment, before)
                    if tree.size == 0:  # a new log, or a segment that has just begun
                        break
                    end = segment.place
                    os.fsync(segment.descriptor)  # what was just appended may not be durable yet
                    base = segment.header.base_offset
                    there = Seal(directory.name, base, base + tree.size, tree.root().hex(), end.chain.hex(), previous,
                                 now_ms)  # fmt: skip
                    _write(seal_path(path), there, key)
                    yield there
                previous, before = there.digest, end
            finally:
                segment.close()


def _tree(segment: SegmentReader, before: Place) -> Tree:
    """Over the segment's records; every block is checked against its index entry."""
    tree = Tree()
    for block in segment.stored(0, segment.beginning(before)):
        for record in block.records:
            tree.add(leaf_hash(record))
    return tree


def _write(path: Path, sealed: Seal, key: Ed25519PrivateKey) -> None:
    content = {
        "seal": json.loads(sealed.statement), "key": fingerprint(key.public_key()),
        "signature": base64.b64encode(key.sign(sealed.statement)).decode(),
    }  # fmt: skip
    new = path.with_name(path.name + ".new")
    with new.open("w") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)
    sync_directory(path.parent)


def _stored(segment: Path) -> tuple[Seal, bytes] | None:
    """The segment's seal and its signature. BadSeal."""
    path = seal_path(segment)
    try:
        return parsed(json.loads(path.read_text()), str(path))
    except FileNotFoundError:
        return None
    except ValueError:
        raise BadSeal(f"{path}: not a seal") from None


def parsed(content: Any, where: str) -> tuple[Seal, bytes]:
    """A seal as it is stored, and its signature. BadSeal."""
    try:
        found = Seal(**content["seal"])
        signature = base64.b64decode(content["signature"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise BadSeal(f"{where}: not a seal") from None
    return found, signature


# -- checking ----------------------------------------------------------------------------------------------------------


def check(data_dir: Path, key: Ed25519PublicKey) -> Iterator[Seal]:
    """Each seal, when it holds: signed with the key, of records and a chain that are as they were, and behind the seal
    before. What comes behind the last seal is not sealed yet; what has records and no seal at all was never
    sealed, or its seals are gone. BadSeal, CorruptLog, LogError."""
    for directory in partitions(data_dir):
        previous, before = "", Place(0, 0, first_chain(directory.name), 0)
        files = segment_files(directory)
        if not files:
            raise LogError(f"{directory}: no segment of a log is here")
        begins = base_offset_of(files[0])
        if begins != 0:
            raise BadSeal(f"{directory}: its history begins at offset {begins}, what was before is gone")
        for path in files:
            segment = SegmentReader(path, path == files[-1])
            try:
                check_joint(segment, before)
                sealed = _checked(segment, before, previous, key)
                if sealed is None:
                    if not previous and any(segment.stored(0, segment.beginning(before))):
                        raise BadSeal(f"{directory}: there is no seal of it")
                    break
                yield sealed
                previous, before = sealed.digest, segment.place
            finally:
                segment.close()
        for path in sorted(directory.glob("_*.seal")):
            if path not in map(seal_path, files):
                raise BadSeal(f"{path}: its segment is gone")
            if path.stem[1:] > f"{before.offset:020d}":
                raise BadSeal(f"{path}: the segment before it has no seal")


def _checked(segment: SegmentReader, before: Place, previous: str, key: Ed25519PublicKey) -> Seal | None:
    path = seal_path(segment.path)
    stored = _stored(segment.path)
    if stored is None:
        return None
    sealed, signature = stored
    verify_signature(sealed, signature, key, str(path))
    beginning = segment.beginning(before)
    tree, chain = Tree(), beginning.chain
    for block in segment.stored(0, beginning):
        if block.entry.first_offset < sealed.next_offset:
            chain = block.entry.chain
            for record in block.records:
                tree.add(leaf_hash(record))
    base = segment.header.base_offset
    if (sealed.partition, sealed.base_offset) != (segment.header.partition, base):
        raise BadSeal(f"{path}: the seal of another segment, {sealed.partition} offset {sealed.base_offset}")
    if sealed.previous != previous:
        raise BadSeal(f"{path}: it does not follow the seal before it")
    if base + tree.size != sealed.next_offset:
        raise BadSeal(f"{path}: {sealed.next_offset - base} records were sealed, {tree.size} are there")
    if (sealed.root, sealed.chain) != (tree.root().hex(), chain.hex()):
        last = sealed.next_offset - 1
        raise BadSeal(f"{path}: the records from offset {base} to {last} are not those that were sealed")
    return sealed


def verify_signature(sealed: Seal, signature: bytes, key: Ed25519PublicKey, where: str) -> None:
    try:
        key.verify(signature, sealed.statement)
    except InvalidSignature:
        raise BadSeal(f"{where}: the signature is not one of the key {fingerprint(key)[:16]}...") from None


# -- proofs ------------------------------------------------------------------------------------------------------------


def prove(data_dir: Path, partition: str, offset: int) -> dict[str, Any]:
    """That the record at `offset` is in the sealed history. BadSeal when there is no seal about it."""
    directory = partition_directory(data_dir, partition)
    if directory not in partitions(data_dir):
        raise LogError(f"{data_dir}: there is no partition {partition}")
    files = [path for path in segment_files(directory) if base_offset_of(path) <= offset]
    if not files:
        raise BadSeal(f"{partition}: offset {offset} is not in the log")
    path = files[-1]
    try:
        content = json.loads(seal_path(path).read_text())
    except (FileNotFoundError, ValueError):
        raise BadSeal(f"{partition}: offset {offset} is not sealed yet: run 'rewindmq seal'") from None
    sealed, _ = parsed(content, str(seal_path(path)))
    if not sealed.base_offset <= offset < sealed.next_offset:
        raise BadSeal(f"{partition}: offset {offset} is not sealed yet: run 'rewindmq seal'")
    records: list[bytes] = []
    segment = SegmentReader(path, path == segment_files(directory)[-1])
    try:
        before = Place(segment.header.base_offset, 0, segment.index.chain_before or b"", 0)
        for block in segment.stored(0, segment.beginning(before)):
            if block.entry.first_offset < sealed.next_offset:
                records += block.records
    finally:
        segment.close()
    index = offset - sealed.base_offset
    leaves = [leaf_hash(record) for record in records]
    return {
        "partition": partition, "offset": offset, "record": base64.b64encode(records[index]).decode(),
        "path": [each.hex() for each in proof(leaves, index)], **content,
    }  # fmt: skip


def check_proof(given: Any, key: Ed25519PublicKey) -> tuple[Seal, bytes]:
    """The seal and the record that it is about. BadSeal."""
    sealed, signature = parsed(given, "the proof")
    verify_signature(sealed, signature, key, "the proof")
    try:
        record = base64.b64decode(given["record"], validate=True)
        partition, offset = given["partition"], int(given["offset"])
        path = [bytes.fromhex(each) for each in given["path"]]
        size = sealed.next_offset - sealed.base_offset
        root = root_of(leaf_hash(record), offset - sealed.base_offset, size, path)
    except (KeyError, TypeError, ValueError) as error:
        raise BadSeal(f"the proof makes no sense: {error}") from None
    if partition != sealed.partition or root.hex() != sealed.root:
        raise BadSeal("the proof does not lead to what was sealed: the record is another")
    return sealed, record
