"""Copies the keys that a recovered history needs: no archive has keys.

    missing = copy_keys(keys_of(data_dir), KeyStore(former / "keys"), KeyStore(data_dir / "keys"))

Ids are found by their form: in a record a key's id is followed by the length of the nonce, 12 bytes. A record is not
decoded for that, which would cost ten times as much. Text of this form in a body that is not encrypted counts as an id.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.store.bases import BaseError, Bases

# It begins with the one byte that stands in every id, so that the search goes from one of these bytes to the next one.
_ID = re.compile(rb"-(?<=([0-9a-f]{40})-)([1-9][0-9]{0,8}(?:-[0-9a-f]{16})?)\x18")


def keys_of(data_dir: Path) -> list[str]:
    """The ids of the keys under which bodies of the history are, in order.

    It reads the whole log. Raises LogError, CorruptLog."""
    found: set[str] = set()
    try:
        for records in _records(data_dir):
            found.update(ids_in(b"".join(records)))
    except BaseError as error:
        raise LogError(str(error)) from None
    return sorted(found)


def ids_in(data: bytes) -> set[str]:
    """The ids of keys in these bytes of records."""
    return {f"{name.decode()}-{rest.decode()}" for name, rest in _ID.findall(data)}


def _records(data_dir: Path) -> Iterator[Iterable[bytes]]:
    """Yields all records of queues, some at a time."""
    bases = Bases(data_dir / "bases")
    for partition in EmbeddedLogReader(data_dir).queues:
        for offset in bases.offsets(partition.name):
            for _, record in bases.open(partition.name, offset).records():
                yield (record,)
        for block in partition.read(partition.start_offset):
            yield block.records


def copy_keys(key_ids: Iterable[str], source: KeyStore, target: KeyStore) -> list[str]:
    """Copy these keys from one directory to another. Returns the ids that neither directory has.

    Of a key that was destroyed its tombstone is copied. Raises OSError."""
    missing = []
    for key_id in key_ids:
        if target.content(key_id) is None and not target.has_tombstone(key_id) and not target.take(key_id, source):
            missing.append(key_id)
    return missing
