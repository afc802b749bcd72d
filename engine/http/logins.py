"""Logins of browsers: POST /api/login gives a cookie, which later requests bring instead of a password.

- A login ends with DELETE /api/login, after IDLE_SECONDS without a request, after LONGEST_SECONDS, with the node, when
  the user's password changes or the user is deleted, and when the token that it began with expires.
- The cookie is for this site and for HTTP only (SameSite=Strict, HttpOnly; Secure over TLS): no script and no page of
  another site can use it. engine/http/browsers.py refuses what another site asks for besides.
- A node knows its own logins only. Behind a balancer a browser has to stay with one node.
- A user has at most MOST_OF_USER logins: a user who logs in without end ends no login of others.
- Browsers send a cookie to each port of a host. So its name has the port, and two nodes on a host do not take each
  other's cookie for theirs.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from starlette.requests import Request

from rewindmq.engine.identity.grants import Grant

COOKIE: Final = "rewindmq_login"
IDLE_SECONDS: Final = 8 * 3600
LONGEST_SECONDS: Final = 24 * 3600
# Then the one that was idle longest ends.
MOST_OF_USER: Final = 100
MOST_LOGINS: Final = 10_000  # of a node


@dataclass(slots=True)
class Login:
    """A browser that is logged in. `password_hash`: as it was then. `grant`: of the token that it came with. Times by
    `Logins.now`."""

    user: str
    password_hash: str
    since: float
    used: float
    grant: Grant | None = None


class Logins:
    """The logins of a node. A token is kept as its hash only."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        # The one that was idle longest is the first.
        self._by_hash: OrderedDict[bytes, Login] = OrderedDict()
        self._of_user: dict[str, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def open(self, user: str, password_hash: str, grant: Grant | None = None) -> str:
        """Begin a login. Returns the token for the cookie."""
        token, now = secrets.token_urlsafe(32), self.now()
        if len(self._of_user.get(user, ())) >= MOST_OF_USER:
            self._end(next(iter(self._of_user[user])))
        elif len(self._by_hash) >= MOST_LOGINS:
            self._end(next(iter(self._by_hash)))
        key = _hash(token)
        self._by_hash[key] = Login(user, password_hash, now, now, grant)
        self._of_user.setdefault(user, OrderedDict())[key] = None
        return token

    def find(self, token: str, used: bool = True) -> Login | None:
        """Return the login of a token; None if it ended.

        `used`: it is in use now, which counts against its idle time."""
        key = _hash(token)
        login, now = self._by_hash.get(key), self.now()
        if login is None:
            return None
        if now - login.used > IDLE_SECONDS or now - login.since > LONGEST_SECONDS:
            self._end(key)
            return None
        if not used:
            return login
        login.used = now
        self._by_hash.move_to_end(key)
        self._of_user[login.user].move_to_end(key)
        return login

    def close(self, token: str) -> None:
        """End the login of a token, if there is one."""
        key = _hash(token)
        if key in self._by_hash:
            self._end(key)

    def _end(self, key: bytes) -> None:
        user = self._by_hash.pop(key).user
        of_user = self._of_user[user]
        del of_user[key]
        if not of_user:
            del self._of_user[user]


def cookie_of(request: Request) -> str:
    """Return the name of the cookie: with the port that the browser asks, if it is not the scheme's own."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isascii() and port.isdigit() and len(port) <= 5 else COOKIE


def _hash(token: str) -> bytes:
    return sha256(token.encode()).digest()
