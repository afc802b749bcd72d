"""Who may come in, and what they may do.

Rules of this file
- Passwords are kept as argon2id hashes in PHC form. Verifying one costs tens of milliseconds on purpose, so a thread
  does it, and a password that was right is remembered, as a keyed digest in memory only: clients that reconnect don't
  cost that again.
- An unknown user costs what a wrong password does: how long a refusal takes does not tell who exists.
- Permissions are three regular expressions per user and vhost, searched in the resource's name (not anchored; empty
  matches nothing but the empty name), the default exchange under the name `amq.default`. Texts are RabbitMQ 3.13's
  (rabbit_access_control.erl, rabbit_auth_backend_internal.erl, rabbit_auth_mechanism_plain.erl).
"""

import asyncio
import hashlib
import re
import secrets
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from engine.declarations import resource
from engine.errors import AccessRefused
from projections.topology import Topology

LOGIN_REFUSED = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
REMEMBERED_LOGINS = 4096
REMEMBERED_DECISIONS = 65_536
VERIFYING_THREADS = 2
# A hash as ours, of a password that nobody has: what is verified for users who are not there, or cannot log in.
NOBODYS_HASH = f"$argon2id$v=19$m=19456,t=2,p=1${'A' * 22}${'A' * 43}"


class Passwords:
    """Hashes passwords and verifies them. About 20 ms and 19 MiB each (OWASP's smaller argon2id setting)."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, None] = {}
        self._threads = ThreadPoolExecutor(VERIFYING_THREADS, "passwords")

    def hash(self, password: str) -> str:
        return self._hasher.hash(password)

    async def verify(self, password_hash: str, password: str) -> bool:
        """Waits, unless it is known to be right."""
        proof = hashlib.blake2b(f"{password_hash}\0{password}".encode(), key=self._key).digest()
        if proof in self._right:
            return True
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._verify, proof, password_hash, password)

    def _verify(self, proof: bytes, password_hash: str, password: str) -> bool:
        """In a thread."""
        if proof in self._right:  # of many who come at once, one is enough
            return True
        try:
            self._hasher.verify(password_hash, password)
        except (VerificationError, InvalidHashError):
            return False
        if len(self._right) >= REMEMBERED_LOGINS:
            self._right.clear()
        self._right[proof] = None
        return True


class Access:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._passwords = Passwords()
        self._decisions: dict[tuple[str, str, str, str], bool] = {}

    def changed(self) -> None:
        """Users or permissions changed."""
        self._decisions.clear()

    def hash(self, password: str) -> str:
        return self._passwords.hash(password)

    async def authenticate(self, user: str, password: str) -> str:
        password_hash = self._hash_of(user)
        right = await self._passwords.verify(password_hash or NOBODYS_HASH, password)
        if not right or not password_hash or password_hash != self._hash_of(user):  # it may have changed meanwhile
            raise AccessRefused(LOGIN_REFUSED)
        return user

    def _hash_of(self, user: str) -> str:
        known = self._topology.users.get(user)
        return "" if known is None else known.password_hash

    def may_enter(self, user: str, vhost: str) -> bool:
        return (vhost, user) in self._topology.permissions

    def check(self, user: str, vhost: str, permission: str, kind: str, name: str) -> None:
        """`permission`: configure, write or read; `kind`: queue or exchange. AccessRefused without it."""
        name = "amq.default" if kind == "exchange" and name == "" else name
        key = (user, vhost, permission, name)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self._decide(user, vhost, permission, name)
            if len(self._decisions) >= REMEMBERED_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = allowed
        if not allowed:
            raise AccessRefused(f"{permission} access to {resource(kind, name, vhost)} refused for user '{user}'")

    def _decide(self, user: str, vhost: str, permission: str, name: str) -> bool:
        granted = self._topology.permissions.get((vhost, user))
        if granted is None:
            return False
        patterns = {"configure": granted.configure, "write": granted.write, "read": granted.read}
        return re.search(patterns[permission] or "^$", name) is not None
