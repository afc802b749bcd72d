"""Bodies that are encrypted under a key of the subject that a header names, until somebody erases the subject (B-15).

    publish   -> look_at -> sealed -> the log, RocksDB, dead letters: ciphertext, with its `Encryption`
                            NoKeyYet: the subject's first message waits (`make_key`), and its connection with it
    delivery  -> opened  -> plain while the key lives; without it an empty body, and the header

        x-erased = true         the key was destroyed
        x-unreadable = "..."    the key is not here, or the bytes are not those that were encrypted; it is logged, too

AES-256-GCM, 16 bytes of tag behind the ciphertext. Bound to it is whose it is: "rewindmq body 1", the key's id and the
subject, a zero byte between them. Not the route or the headers: a dead letter has others, and takes the ciphertext on.
A nonce is 8 random bytes of this process and a count of 4: it comes once in a process, and in two at a chance of 2^-64.

Rules of this file
- Everything that decrypts does it here. Nothing that is decrypted is kept.
- The loop waits for no sync of the disk: keys are made and destroyed in threads. A message is logged when its key is on
  the disk, and under none that is marked: what is published after an erasure, at any node, has a new one.
- Keys in memory do not outlive the erasure: `erase` at this node, `erased` when the event is folded, here or elsewhere.
  Nor for long one that another node destroyed and ended before it said so: all are read again now and then.
- A key that comes back after its erasure (from a backup, or in a directory of a node's own) is destroyed again: at the
  start, and when the subject is erased once more.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.errors import PreconditionFailed, ResourceError
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import with_entry
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Encryption

if TYPE_CHECKING:
    from rewindmq.schemas.amqp.properties import Parsed

CONTEXT = b"rewindmq body 1"
MAX_SUBJECT_BYTES = 255  # what fits into a path of the management API
KEPT = 10_000  # keys at hand
LOOK_AGAIN_SECONDS = 10.0  # how long a key is at hand before it is looked for again
THREADS = 4  # that wait for the disk: keys of so many subjects are made at the same time
TOLD = 1_000  # keys of which it was said that they are missing
COUNTS = 1 << 32
ERASED, UNREADABLE = b"x-erased", b"x-unreadable"
# Headers that the broker reads or writes itself: none can name a subject.
TAKEN = (
    "CC",
    "BCC",
    "x-death",
    "x-delay",
    "x-delivery-count",
    "x-acquired-count",
    "x-stream-offset",
    "x-erased",
    "x-unreadable",
)
TAKEN_BEGINNINGS = ("x-first-death-", "x-last-death-")

logger = logging.getLogger(__name__)


def why_no_subject_header(name: str) -> str | None:
    """Why a header can't name the subject of a message."""
    if not 0 < len(name.encode()) <= 128:
        return "a header's name has 1 to 128 bytes"
    if name in TAKEN or name.startswith(TAKEN_BEGINNINGS):
        return f"the header {name} has a meaning of its own"
    return None


class NoKeyYet(Exception):
    """The subject has no key: `make_key` makes one. Nothing was done."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject


class Subjects:
    """`header`: which one names the subject of a message; "": none does, and nothing is encrypted. `erased`: ids of
    keys that the history says are destroyed."""

    def __init__(self, header: str, keys: KeyStore, erased: Mapping[str, int]) -> None:
        self.keys = keys
        self._header = header
        self._erased = erased
        self._current: dict[str, tuple[str, AESGCM]] = {}  # by subject
        self._ciphers: dict[str, AESGCM] = {}  # by key id
        self._threads = ThreadPoolExecutor(THREADS, "keys")
        self._making: dict[str, asyncio.Future[tuple[str, bytes]]] = {}  # by subject: keys that threads make
        self._let_go_at = 0.0  # of all of these
        self._told: dict[tuple[str, str], None] = {}
        self._prefix = b""
        self._counts: Iterator[int] = iter(())

    # -- publishing ---------------------------------------------------------------------------------------------------

    def look_at(self, parsed: "Parsed") -> None:
        """Note whose message it is. PreconditionFailed (406) when the header is no name: a body that should have been
        encrypted must not get into the history by a mistake of its publisher."""
        if not self._header or parsed.headers < 0:
            return
        for name, kind, value in tables.parse(parsed.header_table()):
            if name != self._header:
                continue
            if kind != "longstr" or not isinstance(value, str) or not 0 < len(value.encode()) <= MAX_SUBJECT_BYTES:
                raise PreconditionFailed(
                    f"invalid message: header '{name}' names the subject, a string of 1 to {MAX_SUBJECT_BYTES} bytes"
                    f" in UTF-8, not {kind if kind != 'longstr' else 'such a string'}"
                )
            parsed.subject = value
            parsed.by_hand = True

    def sealed(self, subject: str, body: bytes) -> tuple[bytes, Encryption]:
        """What is logged instead of the body. NoKeyYet. ResourceError (506): keys can't be read."""
        self._look_again()
        found = self._current.get(subject)
        if found is None or self.keys.is_marked(found[0]):
            found = self._key_of(subject)
        key_id, cipher = found
        nonce = self._nonce()
        sealed = cipher.encrypt(nonce, body, bound(key_id, subject))
        return sealed, Encryption(subject, key_id, nonce, len(body))

    def _key_of(self, subject: str) -> tuple[str, AESGCM]:
        try:
            known = self.keys.find(subject)
        except OSError as error:
            raise no_key(error) from None
        if known is None:
            raise NoKeyYet(subject)
        key_id, key = known
        found = key_id, AESGCM(key)
        if len(self._current) >= KEPT:
            self._current.clear()
        self._current[subject] = found
        return found

    async def make_key(self, subject: str) -> None:
        """Wait until the subject has a key; one is made, however many wait for it. ResourceError (506): none can be."""
        making = self._making.get(subject)
        if making is None:
            making = asyncio.get_running_loop().run_in_executor(self._threads, self.keys.current, subject)
            self._making[subject] = making
            making.add_done_callback(lambda _: self._making.pop(subject))
        await asyncio.wait((making,))
        error = making.exception()
        if isinstance(error, OSError):
            raise no_key(error)
        if error is not None:
            raise error

    async def seal(self, subject: str, body: bytes) -> tuple[bytes, Encryption]:
        """`sealed`, for who can wait. ResourceError (506)."""
        while True:
            try:
                return self.sealed(subject, body)
            except NoKeyYet:
                await self.make_key(subject)

    def _look_again(self) -> None:
        if time.monotonic() >= self._let_go_at:
            self._let_go()

    def _let_go(self) -> None:
        """Of all: keys may be there no more that nobody named, since an erasure ends a whole generation."""
        self._let_go_at = time.monotonic() + LOOK_AGAIN_SECONDS
        self._current.clear()
        self._ciphers.clear()

    def _nonce(self) -> bytes:
        count = next(self._counts, None)
        if count is None:
            self._prefix = os.urandom(8)
            self._counts = iter(range(COUNTS))
            count = next(self._counts)
        return self._prefix + count.to_bytes(4, "big")

    # -- delivering ---------------------------------------------------------------------------------------------------

    def opened(self, message: Published) -> Published:
        """The message as a client gets it: `message` itself when it is not encrypted. Never fails."""
        encryption = message.encryption
        if encryption is None:
            return message
        self._look_again()
        key_id = encryption.key_id
        cipher = self._ciphers.get(key_id)
        try:
            if cipher is None:
                cipher = self._cipher(key_id)
            if cipher is None and self.keys.is_destroyed(key_id):
                return without_body(message, ERASED, b"t\x01")
        except OSError as error:
            return self._unreadable(message, f"the key can't be read: {error.strerror or error}")
        if cipher is None:
            return self._unreadable(message, "the key is not here")
        try:
            body = cipher.decrypt(encryption.nonce, message.body, bound(key_id, encryption.subject))
        except (InvalidTag, ValueError):  # ValueError: a nonce that is none
            return self._unreadable(message, "these are not the bytes that were encrypted")
        return with_body(message, message.properties, body)

    def _cipher(self, key_id: str) -> AESGCM | None:
        key = self.keys.read(key_id)
        if key is None:
            return None
        if len(self._ciphers) >= KEPT:
            self._ciphers.clear()
        cipher = self._ciphers[key_id] = AESGCM(key)
        return cipher

    def _unreadable(self, message: Published, why: str) -> Published:
        assert message.encryption is not None
        told = message.encryption.key_id, why
        if told not in self._told and len(self._told) < TOLD:
            self._told[told] = None
            logger.error("a message under key %s goes out without its body: %s (said once)", *told)
        text = why.encode()
        return without_body(message, UNREADABLE, b"S" + len(text).to_bytes(4, "big") + text)

    # -- erasing ------------------------------------------------------------------------------------------------------

    async def erase(self, subject: str) -> tuple[str, ...]:
        """Destroy the keys of a subject. The ids of those of which the history has to say it: also of such that were
        destroyed before a crash, or came back; none: there is nothing to erase. OSError: ask again."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._destroy_all, subject)
        finally:
            self._let_go()

    def _destroy_all(self, subject: str) -> tuple[str, ...]:
        key_ids = tuple(
            key_id for key_id in self.keys.known(subject) if key_id not in self._erased or self.keys.is_there(key_id)
        )
        for key_id in key_ids:
            self.keys.destroy(key_id)
        return key_ids

    def erased(self, key_ids: Iterable[str]) -> None:
        """The history says that these are destroyed. Never fails: the log says what could not be done here."""
        self._let_go()
        for key_id in key_ids:
            try:
                self._destroy_again(key_id)
            except OSError as error:
                logger.error("key %s was erased, and can't be destroyed in %s: %s", key_id, self.keys.directory, error)

    def destroy_what_came_back(self) -> None:
        """Keys that were erased, and are there. OSError."""
        for key_id in self.keys.came_back():
            self._destroy_again(key_id)

    def _destroy_again(self, key_id: str) -> None:
        if self.keys.is_there(key_id):
            logger.warning("key %s was erased, and is in %s: destroyed", key_id, self.keys.directory)
            self.keys.destroy(key_id)


def no_key(error: OSError) -> ResourceError:
    logger.error("no key for a subject: %s", error)
    return ResourceError(f"no key for the message's subject: {error.strerror or error}")


def bound(key_id: str, subject: str) -> bytes:
    """What is authenticated with the body (associated data)."""
    return b"\0".join((CONTEXT, key_id.encode(), subject.encode()))


def without_body(message: Published, header: bytes, value: bytes) -> Published:
    return with_body(message, with_entry(message.properties, header, value), b"")


def with_body(message: Published, properties: bytes, body: bytes) -> Published:
    return Published(
        message.route,
        properties,
        message.expiration_ms,
        message.priority,
        message.persistent,
        message.origin,
        None,
        body,
        len(body),
    )
