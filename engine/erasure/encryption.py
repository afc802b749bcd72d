"""Encrypted bodies. A header names the subject of a message (B-15). The body is encrypted under a key of the subject,
and can be read until somebody erases the subject. A broker that keeps bodies for so many days (B-21) encrypts all of
them, under a key of the day, or of the day and the subject. They can be read until the day has expired (day_expiry.py).

    publish   -> subject_of -> encrypt -> the log, RocksDB, dead letters: ciphertext, with its `Encryption`
                               NoKeyYet: the subject's first message waits (`make_key`), and its connection with it
    delivery  -> decrypt    -> the plain body while the key exists; without the key an empty body, and a header.
                               NotAtHand: a Vault has to open the key; the delivery waits (`fetch`)

        x-erased = true         the key was destroyed, since the subject was erased
        x-expired-body = day    the key was destroyed, since this day has expired (2026-11-23)
        x-unreadable = "..."    the key is not here, or the bytes are not those that were encrypted. It is logged, too

The cipher is AES-256-GCM, with a tag of 16 bytes behind the ciphertext. The associated data are "rewindmq body 1", the
key's id and the subject, with a zero byte between them. Route and headers are not among them: a dead letter has others,
and takes the ciphertext on. A nonce is 8 random bytes of this process and a count of 4 bytes: no nonce is used twice in
a process, and the chance that two processes use the same one is 2^-64.

Rules of this file
- All decryption is done here. No decrypted body is kept.
- The loop waits for no Vault: a thread asks it. If the Vault is away a publish is refused, and a delivery waits for
  FETCH_SECONDS, then its connection is closed, so that the message goes back.
- The loop waits for no sync of the disk: threads make and destroy keys. A message is logged when its key is on the
  disk, and never under a key that is marked as destroyed. So a message that is published after an erasure, at any node,
  has a new key.
- Keys in memory do not outlive the erasure: `erase` drops them at this node, `erased` when the event is folded, here or
  elsewhere. All keys in memory are dropped and read again every LOOK_AGAIN_SECONDS, in case another node destroyed one
  and ended before it logged that.
- A key that comes back after its erasure (from a backup, or in a node's own directory) is destroyed again: when the
  broker starts, and when the subject is erased once more.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rewindmq.engine.config import Config
from rewindmq.engine.erasure.key_content import KEY_BYTES, NotAtHand
from rewindmq.engine.erasure.key_store import NOBODY, KeyStore, day_of
from rewindmq.engine.errors import PreconditionFailed, ResourceError
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import with_entry
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Encryption

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from rewindmq.schemas.amqp.properties import ParsedProperties

CONTEXT = b"rewindmq body 1"
MAX_SUBJECT_BYTES = 255  # the management API has it in its paths
MAX_KEYS = 10_000  # in memory
LOOK_AGAIN_SECONDS = 10.0  # a key stays in memory for so long before it is read again
THREADS = 4  # keys of so many subjects are made or fetched at the same time
FETCH_SECONDS, AGAIN_SECONDS = 15.0, 1.0  # how long a Vault is asked for a key, and the time between two times
MAX_REPORTED = 1_000  # unreadable keys that are logged
COUNTS = 1 << 32
ERASED, EXPIRED, UNREADABLE = b"x-erased", b"x-expired-body", b"x-unreadable"
DAY_MS = 86_400_000
# Headers that the broker reads or writes itself: none can name a subject.
RESERVED = (
    "CC",
    "BCC",
    "x-death",
    "x-delay",
    "x-delivery-count",
    "x-acquired-count",
    "x-stream-offset",
    "x-restored",
    "x-erased",
    "x-expired-body",
    "x-unreadable",
)
RESERVED_PREFIXES = ("x-first-death-", "x-last-death-")

T = TypeVar("T")

logger = logging.getLogger(__name__)


def why_no_subject_header(name: str) -> str | None:
    """The reason why a header can't name the subject of a message; None: it can."""
    if not 0 < len(name.encode()) <= 128:
        return "a header's name has 1 to 128 bytes"
    if name in RESERVED or name.startswith(RESERVED_PREFIXES):
        return f"the header {name} has a meaning of its own"
    return None


def cipher_of(key: bytes) -> "AESGCM":
    """The cipher under a key. The first call loads its library, 6 MB that most brokers never need."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


class NoKeyYet(Exception):
    """The subject has no key: `make_key` makes one. Nothing was done."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject


class Subjects:
    """Encrypts and decrypts bodies. `header`: it names the subject of a message; "": none has a subject. `erased`:
    the ids of the keys that are destroyed according to the history. `clock`: gives the log time whose day has the keys;
    None: keys are for all days, and a message without a subject is not encrypted. `in_loop`: no call may wait for a
    Vault, except those with `await`."""

    def __init__(
        self,
        header: str,
        keys: KeyStore,
        erased: Mapping[str, int],
        clock: Callable[[], int] | None = None,
        in_loop: bool = False,
    ) -> None:
        self.keys = keys
        self._in_loop = in_loop
        self._header = header
        self._erased = erased
        self._clock = clock
        self.every_body = clock is not None
        self._day = ""
        self._next_day_ms = self._day_ms = 0  # `_day` is from then until then
        self._current: dict[str, tuple[str, AESGCM]] = {}  # by subject
        self._ciphers: dict[str, AESGCM] = {}  # by key id
        self._threads = ThreadPoolExecutor(THREADS, "keys")
        self._making: dict[str, asyncio.Future[tuple[str, bytes]]] = {}  # by subject: keys under construction
        self._fetching: dict[str, asyncio.Future[None]] = {}  # by key id: keys that a Vault is asked for
        self._drop_at = 0.0  # when the keys in memory are dropped next
        self._reported: dict[tuple[str, str], None] = {}
        self._prefix = b""
        self._counts: Iterator[int] = iter(())
        if header or clock is not None:
            cipher_of(bytes(KEY_BYTES))  # loads the library now: the first message does not wait for it

    @classmethod
    def of(cls, config: Config, topology: Topology, clock: Callable[[], int]) -> "Subjects":
        """The encryption of a broker. `clock`: its log time."""
        keys = KeyStore.of(config.keys_directory, topology)
        dated = config.keep_bodies_days is not None
        return cls(config.subject_header, keys, topology.erased_keys, clock if dated else None, in_loop=True)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def subject_of(self, parsed: "ParsedProperties") -> str | None:
        """The subject of a message by its properties; None: it has none. PreconditionFailed (406) when the header is no
        name: a body that should have been encrypted must not get into the history by a mistake of its publisher."""
        if not self._header or parsed.headers < 0:
            return None
        subject = None
        for name, kind, value in tables.parse(parsed.header_table()):
            if name != self._header:
                continue
            if kind != "longstr" or not isinstance(value, str) or not 0 < len(value.encode()) <= MAX_SUBJECT_BYTES:
                raise PreconditionFailed(
                    f"invalid message: header '{name}' names the subject, a string of 1 to {MAX_SUBJECT_BYTES} bytes"
                    f" in UTF-8, not {kind if kind != 'longstr' else 'such a string'}"
                )
            subject = value
        return subject

    def logged(self, subject: str | None, body: bytes) -> tuple[bytes, Encryption | None]:
        """The body as it is logged, and how it was encrypted. NoKeyYet. ResourceError (506): keys can't be read."""
        if subject is None:
            if not self.every_body or not body:
                return body, None
            subject = NOBODY
        return self.encrypt(subject, body)

    def today(self) -> str:
        """The day of the log time, in UTC; "" if keys are for all days."""
        if self._clock is None:
            return ""
        now_ms = self._clock()
        if not self._day_ms <= now_ms < self._next_day_ms:
            self._day_ms = now_ms - now_ms % DAY_MS
            self._next_day_ms = self._day_ms + DAY_MS
            self._day = day_at(now_ms)
            self._current.clear()
        return self._day

    def encrypt(self, subject: str, body: bytes) -> tuple[bytes, Encryption]:
        """The ciphertext that is logged instead of the body. NoKeyYet. ResourceError (506): keys can't be read."""
        self._drop_old_keys()
        day = self.today()
        found = self._current.get(subject)
        # Nobody destroys the key of today without a subject, so it is not looked for on the disk.
        if found is None or (subject and self.keys.has_tombstone(found[0])):
            found = self._key_of(subject, day)
        key_id, cipher = found
        nonce = self._nonce()
        ciphertext = cipher.encrypt(nonce, body, associated_data(key_id, subject))
        return ciphertext, Encryption(subject, key_id, nonce, len(body))

    def _key_of(self, subject: str, day: str) -> "tuple[str, AESGCM]":
        try:
            known = self.keys.find(subject, day, self._in_loop)
        except OSError as error:
            raise no_key(error, subject) from None
        except NotAtHand:
            raise NoKeyYet(subject) from None
        if known is None:
            raise NoKeyYet(subject)
        key_id, key = known
        found = key_id, cipher_of(key)
        if len(self._current) >= MAX_KEYS:
            self._current.clear()
        self._current[subject] = found
        return found

    async def make_key(self, subject: str) -> None:
        """Wait until the subject has a key. All that wait at the same time share one. ResourceError (506): none can be
        made."""
        making = self._making.get(subject)
        if making is None:
            making = asyncio.get_running_loop().run_in_executor(self._threads, self.keys.current, subject, self.today())
            self._making[subject] = making
            making.add_done_callback(lambda _: self._making.pop(subject))
        await asyncio.wait((making,))
        error = making.exception()
        if isinstance(error, OSError):
            raise no_key(error, subject)
        if error is not None:
            raise error

    async def make_key_and_encrypt(self, subject: str | None, body: bytes) -> tuple[bytes, Encryption | None]:
        """As `logged`, but waits for a key. ResourceError (506)."""
        while True:
            try:
                return self.logged(subject, body)
            except NoKeyYet as missing:
                await self.make_key(missing.subject)

    def _drop_old_keys(self) -> None:
        if time.monotonic() >= self._drop_at:
            self._drop_keys()

    def _drop_keys(self) -> None:
        """Forget all keys in memory: an erasure ends a whole generation, also keys that it does not name."""
        self._drop_at = time.monotonic() + LOOK_AGAIN_SECONDS
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

    def decrypt(self, message: Published) -> Published:
        """The message as a client gets it: `message` itself when it is not encrypted. NotAtHand: `fetch` the key first.
        Nothing else is raised."""
        encryption = message.encryption
        if encryption is None:
            return message
        self._drop_old_keys()
        key_id = encryption.key_id
        cipher = self._ciphers.get(key_id)
        try:
            if cipher is None:
                cipher = self._cipher(key_id)
            if cipher is None and self.keys.is_destroyed(key_id):
                return self._destroyed(message, encryption)
        except OSError as error:
            return self.unreadable(message, f"the key can't be read: {error.strerror or error}")
        if cipher is None:
            return self.unreadable(message, "the key is not here")
        from cryptography.exceptions import InvalidTag

        try:
            body = cipher.decrypt(encryption.nonce, message.body, associated_data(key_id, encryption.subject))
        except (InvalidTag, ValueError):  # ValueError: the nonce has another length
            return self.unreadable(message, "these are not the bytes that were encrypted")
        return with_body(message, message.properties, body)

    def _cipher(self, key_id: str) -> "AESGCM | None":
        key = self.keys.read(key_id, self._in_loop)
        if key is None:
            return None
        if len(self._ciphers) >= MAX_KEYS:
            self._ciphers.clear()
        cipher = self._ciphers[key_id] = cipher_of(key)
        return cipher

    def fetch(self, key_id: str) -> "asyncio.Future[None]":
        """Have a key at hand that a Vault has to open, or known to be gone. It is tried again for FETCH_SECONDS, then
        OSError. All that wait for the same key share one future."""
        found = self._fetching.get(key_id)
        if found is None:
            found = self._fetching[key_id] = asyncio.ensure_future(self._fetch(key_id))
            found.add_done_callback(partial(self._fetched, key_id))
        return found

    def _fetched(self, key_id: str, future: "asyncio.Future[None]") -> None:
        self._fetching.pop(key_id, None)
        if not future.cancelled():
            future.exception()  # it was logged, and a delivery that waits looks at it

    async def _fetch(self, key_id: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FETCH_SECONDS
        while True:
            try:
                await loop.run_in_executor(self._threads, self.keys.read, key_id)
            except OSError as error:
                if loop.time() >= deadline:
                    logger.error("key %s cannot be opened: %s", key_id, error)
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    def _destroyed(self, message: Published, encryption: Encryption) -> Published:
        """The message without its body, and the reason: the day is over, or the subject was erased."""
        key_id = encryption.key_id
        day = day_of(key_id)
        unlogged = encryption.subject == NOBODY and not self.keys.is_erased(key_id)  # the event is on its way
        if day is not None and (unlogged or self.keys.end_of_day(key_id) is not None):
            return without_body(message, EXPIRED, b"S" + len(day).to_bytes(4, "big") + day.encode())
        return without_body(message, ERASED, b"t\x01")

    def unreadable(self, message: Published, why: str) -> Published:
        """The message without its body, and why; it is logged, too."""
        assert message.encryption is not None
        report = message.encryption.key_id, why
        if report not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported[report] = None
            logger.error("a message under key %s goes out without its body: %s (logged once for this key)", *report)
        text = why.encode()
        return without_body(message, UNREADABLE, b"S" + len(text).to_bytes(4, "big") + text)

    # -- erasing ------------------------------------------------------------------------------------------------------

    async def destroy(self, key_ids: Sequence[str]) -> None:
        """Destroy the keys of a day. OSError: try again."""

        def all_of_them() -> None:
            for key_id in key_ids:
                self.keys.destroy(key_id)

        try:
            await self.in_thread(all_of_them)
        finally:
            self._drop_keys()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work`, which waits for the disk, in a thread, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def erase(self, subject: str) -> tuple[str, ...]:
        """Destroy the keys of a subject. Returns the ids that the history has to name, also of keys that were destroyed
        before a crash, or came back; empty: there is nothing to erase. OSError: try again."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._destroy_all, subject, self.today()
            )
        finally:
            self._drop_keys()

    def _destroy_all(self, subject: str, day: str) -> tuple[str, ...]:
        key_ids = self._not_erased(subject)
        if key_ids and day:
            # Other nodes see by the tombstone of today's key that the generation is over, before they fold the event.
            self.keys.current(subject, day)
            key_ids = self._not_erased(subject)
        for key_id in key_ids:
            self.keys.destroy(key_id)
        return key_ids

    def _not_erased(self, subject: str) -> tuple[str, ...]:
        """The keys of a subject that are there, or that the history does not call destroyed."""
        keys = self.keys
        return tuple(each for each in keys.known(subject) if each not in self._erased or keys.is_there(each))

    def erased(self, key_ids: Iterable[str]) -> None:
        """Destroy keys that were erased according to the history. Never fails: errors are logged."""
        self._drop_keys()
        some = tuple(key_ids)
        try:
            vault = self.keys.vault()
        except OSError as error:
            logger.error("keys were erased, and can't be dropped: %s", error)
            return
        if vault is None:
            self._destroy_each(some)
            return
        for key_id in some:
            vault.forget(key_id)
        self._threads.submit(self._destroy_each, some)

    def _destroy_each(self, key_ids: tuple[str, ...]) -> None:
        for key_id in key_ids:
            try:
                self._destroy_again(key_id)
            except OSError as error:
                logger.error("key %s was erased, and can't be destroyed in %s: %s", key_id, self.keys.directory, error)

    def destroy_what_came_back(self) -> None:
        """Destroy keys that were erased and are in the directory again. OSError."""
        for key_id in self.keys.came_back():
            self._destroy_again(key_id)

    def _destroy_again(self, key_id: str) -> None:
        if self.keys.is_there(key_id):
            logger.warning("key %s was erased, and is in %s: destroyed", key_id, self.keys.directory)
            self.keys.destroy(key_id)


def day_at(time_ms: int) -> str:
    """The day of a time, in UTC, as 2026-11-23."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).date().isoformat()


def no_key(error: OSError, subject: str) -> ResourceError:
    """The error for a publisher whose message can get no key; it is logged, too."""
    what = "day" if subject == NOBODY else "subject"
    logger.error("no key for a %s: %s", what, error)
    return ResourceError(f"no key for the message's {what}: {error.strerror or error}")


def associated_data(key_id: str, subject: str) -> bytes:
    """The data that are authenticated with the body."""
    return b"\0".join((CONTEXT, key_id.encode(), subject.encode()))


def without_body(message: Published, header: bytes, value: bytes) -> Published:
    """The message with an empty body and one more header."""
    return with_body(message, with_entry(message.properties, header, value), b"")


def with_body(message: Published, properties: bytes, body: bytes) -> Published:
    """The message with other properties and a plain body."""
    return Published(
        message.route,
        properties,
        expiration_ms=message.expiration_ms,
        priority=message.priority,
        persistent=message.persistent,
        origin=message.origin,
        body=body,
        body_size=len(body),
    )
