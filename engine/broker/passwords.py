"""Passwords: their hashes, verified, imported from RabbitMQ and exported.

Rules of this file
- A password is stored as an argon2id hash in PHC form. Verifying one takes tens of milliseconds on purpose, so a thread
  does it. A right password is remembered, as a keyed digest in memory only: a client that reconnects does not cost that
  again.
- A hash from RabbitMQ is stored as it is, as `$rabbitmq-<algorithm>$<base64>` of a salt of 4 bytes and the digest of
  salt and password (rabbit_password.erl). An export has it as the import had it.
- Refusing a wrong password takes the same time for every kind of hash, and for a user that does not exist.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.host.heap import returned_when_freed

REMEMBERED_LOGINS = 4096
VERIFYING_THREADS = 2
# An argon2id hash of no password: verified for a user that does not exist, or that cannot log in.
NOBODYS_HASH = f"$argon2id$v=19$m=19456,t=2,p=1${'A' * 22}${'A' * 43}"
MOST_MEMORY_KIB, MOST_ITERATIONS = 1_048_576, 100  # that an imported hash may cost
SALT_BYTES = 4
BEGINS_OURS = ("$argon2id$", "JGFyZ29uMmlkJ")  # a hash that was made here, as it is and in base64
OURS = "argon2id"  # as `hashing_algorithm` of an export
FROM_RABBITMQ = "$rabbitmq-"
ALGORITHMS = {f"rabbit_password_hashing_{name}": name for name in ("sha256", "sha512", "md5")}


class Passwords:
    """Hashes passwords and verifies them. About 20 ms and 19 MiB each (OWASP's smaller argon2id setting)."""

    def __init__(self) -> None:
        self.hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, None] = {}
        self._threads = ThreadPoolExecutor(VERIFYING_THREADS, "passwords")

    def hash(self, password: str) -> str:
        with returned_when_freed():
            return self.hasher.hash(password)

    def proof(self, password_hash: str, password: str) -> bytes:
        """A keyed hash of a user's password. It is kept in memory only."""
        return hashlib.blake2b(f"{password_hash}\0{password}".encode(), key=self._key).digest()

    async def verify(self, password_hash: str, password: str) -> bool:
        """Return True if the password is right. Waits for a thread, unless the password is remembered."""
        proof = self.proof(password_hash, password)
        if proof in self._right:
            return True
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._verify, proof, password_hash, password)

    def _verify(self, proof: bytes, password_hash: str, password: str) -> bool:
        """As `verify`, in a thread."""
        if proof in self._right:  # another login with the same password was faster
            return True
        if password_hash.startswith(FROM_RABBITMQ):
            right = matches(password_hash, password) or self._matches_ours(NOBODYS_HASH, password)  # it takes its time
        else:
            right = self._matches_ours(password_hash, password)
        if right:
            if len(self._right) >= REMEMBERED_LOGINS:
                self._right.clear()
            self._right[proof] = None
        return right

    def _matches_ours(self, password_hash: str, password: str) -> bool:
        try:
            with returned_when_freed():  # 19 MiB that would stay with the process for no other use
                self.hasher.verify(password_hash, password)
        except (VerificationError, InvalidHashError):
            return False
        return True


def matches(password_hash: str, password: str) -> bool:
    """Return True if a hash from RabbitMQ, as it is stored, is the password's. A damaged hash matches no password."""
    algorithm, _, encoded = password_hash.removeprefix(FROM_RABBITMQ).partition("$")
    try:
        known = base64.b64decode(encoded)
        salt, digest = known[:SALT_BYTES], known[SALT_BYTES:]
        return hmac.compare_digest(hashlib.new(algorithm, salt + password.encode()).digest(), digest)
    except ValueError:
        return False


def imported(password_hash: str, algorithm: str) -> str:
    """The hash as it is stored, from a `password_hash` and its `hashing_algorithm` in definitions of RabbitMQ or
    RewindMQ. "" (no password) stays "". PreconditionFailed."""
    if password_hash == "":
        return ""
    if algorithm not in (OURS, *ALGORITHMS):
        raise PreconditionFailed(f"hashing_algorithm '{algorithm}' is not known: {', '.join((*ALGORITHMS, OURS))}")
    if algorithm == OURS and password_hash.startswith("$"):
        return _checked_ours(password_hash)
    try:
        known = base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        raise PreconditionFailed("not_base64: the password_hash") from None
    if algorithm == OURS:
        return _checked_ours(known.decode("ascii", "replace"))
    name = ALGORITHMS[algorithm]
    expected = SALT_BYTES + hashlib.new(name).digest_size
    if len(known) != expected:
        raise PreconditionFailed(f"a password_hash of {algorithm} has {expected} bytes, this one {len(known)}")
    return f"{FROM_RABBITMQ}{name}${base64.b64encode(known).decode()}"


def _checked_ours(password_hash: str) -> str:
    try:
        asked = extract_parameters(password_hash)
        if not password_hash.startswith(f"${OURS}$"):
            raise InvalidHashError
    except InvalidHashError:
        raise PreconditionFailed(f"the password_hash is no PHC string of {OURS}") from None
    if asked.memory_cost > MOST_MEMORY_KIB or asked.time_cost > MOST_ITERATIONS:
        raise PreconditionFailed("the password_hash would cost more memory or time than a login may")
    return password_hash


def exported(password_hash: str) -> tuple[str, str]:
    """The `password_hash` and the `hashing_algorithm` of a user, for definitions. A hash from RabbitMQ is as RabbitMQ
    has it. An argon2id hash is in base64, since RabbitMQ refuses a whole document for one hash that is not."""
    if password_hash == "":
        return "", "rabbit_password_hashing_sha256"
    if password_hash.startswith(FROM_RABBITMQ):
        algorithm, _, encoded = password_hash.removeprefix(FROM_RABBITMQ).partition("$")
        return encoded, f"rabbit_password_hashing_{algorithm}"
    return base64.b64encode(password_hash.encode()).decode(), OURS


def rabbitmq_hash(password: str) -> str:
    """A new hash of a password as `rabbitmqctl hash_password` prints it: SHA-256, random salt, base64."""
    salt = secrets.token_bytes(SALT_BYTES)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
