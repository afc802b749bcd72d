"""Hashes of passwords that all tests of a process share.

argon2 takes 20 ms of CPU on purpose, and each broker that starts for the first time hashes a password.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

_hash, _verify = PasswordHasher.hash, PasswordHasher.verify


@contextmanager
def hashed_once() -> Iterator[None]:
    """Remember what argon2 says, until the end of the block and in later ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PasswordHasher, "hash", _remembered_hash)
        patch.setattr(PasswordHasher, "verify", _remembered_verify)
        yield


def _remembered_hash(self: PasswordHasher, password: str | bytes, *, salt: bytes | None = None) -> str:
    return _hash_of(self.time_cost, self.memory_cost, password, salt)


def _remembered_verify(self: PasswordHasher, hash: str | bytes, password: str | bytes) -> bool:
    if not _is_right(hash, password):
        raise VerifyMismatchError
    return True


@cache
def _hash_of(time_cost: int, memory_cost: int, password: str | bytes, salt: bytes | None) -> str:
    return _hash(PasswordHasher(time_cost=time_cost, memory_cost=memory_cost, parallelism=1), password, salt=salt)


@cache
def _is_right(hash: str | bytes, password: str | bytes) -> bool:
    try:
        return bool(_verify(PasswordHasher(), hash, password))
    except VerifyMismatchError:
        return False
