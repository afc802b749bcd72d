"""Logins of browsers: POST /api/login gives a cookie, which later requests bring instead of a password.

- A login ends with DELETE /api/login, after IDLE_SECONDS without a request, after LONGEST_SECONDS, with the node, and
  when the user's password changes or the user is deleted.
- The cookie is for this site and for HTTP only (SameSite=Strict, HttpOnly; Secure over TLS): no script and no page of
  another site can use it. engine/http/browsers.py refuses what another site asks for besides.
- A node knows its own logins only. Behind a balancer a browser has to stay with one node.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

COOKIE: Final = "rewindmq_login"
IDLE_SECONDS: Final = 8 * 3600
LONGEST_SECONDS: Final = 24 * 3600
MOST_LOGINS: Final = 10_000  # of a node; then the one that was idle longest ends


@dataclass(slots=True)
class Login:
    """A browser that is logged in. `password_hash`: as it was then. Times by `Logins.now`."""

    user: str
    password_hash: str
    since: float
    used: float


class Logins:
    """The logins of a node. A token is kept as its hash only."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._by_hash: OrderedDict[bytes, Login] = OrderedDict()  # the one that was idle longest first

    def open(self, user: str, password_hash: str) -> str:
        """Begin a login. Returns the token for the cookie."""
        token, now = secrets.token_urlsafe(32), self.now()
        while len(self._by_hash) >= MOST_LOGINS:
            self._by_hash.popitem(last=False)
        self._by_hash[_hash(token)] = Login(user, password_hash, now, now)
        return token

    def find(self, token: str) -> Login | None:
        """The login of a token, which is in use now; None if it ended."""
        key = _hash(token)
        login, now = self._by_hash.get(key), self.now()
        if login is None:
            return None
        if now - login.used > IDLE_SECONDS or now - login.since > LONGEST_SECONDS:
            del self._by_hash[key]
            return None
        login.used = now
        self._by_hash.move_to_end(key)
        return login

    def close(self, token: str) -> None:
        """End the login of a token, if there is one."""
        self._by_hash.pop(_hash(token), None)


def _hash(token: str) -> bytes:
    return sha256(token.encode()).digest()
