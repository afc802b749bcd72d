"""Values in RocksDB, for tests that damage them."""

from rocksdict import Rdict


def stored(db: Rdict, key: bytes) -> bytes:
    value = db[key]
    assert isinstance(value, bytes), f"nothing at {key!r}"
    return value


def flipped(value: bytes) -> bytes:
    """The value with one bit of its last byte turned over."""
    return value[:-1] + bytes([value[-1] ^ 1])
