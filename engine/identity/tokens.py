"""The tokens of a broker: what they grant, and which were verified.

A token that was verified is remembered by its hash, until it expires or the provider's keys change. So a client that
sends its token with each request does not cost a verification each time.
"""

import re
import time
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from rewindmq.engine.identity.grants import Grant, TokenRefused, written
from rewindmq.engine.identity.settings import TokenSettings

if TYPE_CHECKING:
    from rewindmq.engine.identity.verifier import Verifier

MOST_BYTES: Final = 12_288  # an HTTP header has room for 16 KiB
MOST_REMEMBERED: Final = 2_097_152  # bytes of tokens; what they grant may take twenty times as much
FORM: Final = re.compile(r"eyJ[\w-]*\.[\w-]*\.[\w-]*", re.ASCII)


def is_token(password: str) -> bool:
    """Return True if a password has the form of a signed JWT."""
    return FORM.fullmatch(password) is not None


class Tokens:
    """Tokens of one provider. `settings` None: no token is taken. `now`: Unix time in seconds."""

    def __init__(self, settings: TokenSettings | None, now: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._now = now
        self._verifier = _verifier_of(settings)
        self._remembered: dict[bytes, Grant] = {}
        self._remembered_bytes = 0
        self._remembered_version = 0

    def start(self) -> None:
        """Read the keys, or begin to fetch them. BadKeys, OSError."""
        if self._verifier is not None:
            self._verifier.keys.read_file()
            self._verifier.keys.start()

    def stop(self) -> None:
        """Fetch no more."""
        if self._verifier is not None:
            self._verifier.keys.stop()

    def changed_to(self, settings: TokenSettings | None) -> Callable[[], None]:
        """Prepare other settings, and read a file of keys again. The answer activates both. Raises BadKeys, OSError."""
        next_one, before = _verifier_of(settings), self._verifier
        if next_one is not None:
            next_one.keys.read_file()
            if before is not None and before.settings.place == next_one.settings.place and not next_one.keys.known:
                next_one.keys = before.keys  # they are being fetched already

        def put_in_force() -> None:
            if before is not None and (next_one is None or next_one.keys is not before.keys):
                before.keys.stop()
            self.settings, self._verifier = settings, next_one
            self._forget()
            if next_one is not None:
                next_one.keys.start()

        return put_in_force

    async def grant(self, token: str) -> Grant:
        """Verify a token and return its grant.

        Waits for the provider's keys, if the token names an unknown one. Raises TokenRefused."""
        verifier = self._verifier
        if verifier is None:
            raise TokenRefused("tokens are not taken here: --oauth-resource-server-id is not set")
        if len(token) > MOST_BYTES:
            raise TokenRefused(f"the token is longer than {MOST_BYTES} bytes")
        if not is_token(token):
            raise TokenRefused("the token is not a signed JWT")
        if self._remembered_version != verifier.keys.version:
            self._remembered_version = verifier.keys.version
            self._forget()
        proof = sha256(token.encode()).digest()
        found = self._remembered.get(proof)
        if found is None:
            found = await verifier.verified(token, self._now)
            if verifier is self._verifier:
                self._remember(token, proof, found)
        self.check(found)
        return found

    async def check_identity(self, token: str, client_id: str, nonce: str) -> None:
        """Check the ID token of a sign-in. TokenRefused."""
        verifier = self._verifier
        if verifier is None or len(token) > MOST_BYTES or not is_token(token):
            raise TokenRefused("the provider's ID token is not a signed JWT")
        await verifier.check_identity(token, client_id, nonce, self._now)

    def _remember(self, token: str, proof: bytes, grant: Grant) -> None:
        if self._remembered_bytes >= MOST_REMEMBERED:
            self._forget()
        self._remembered[proof] = grant
        self._remembered_bytes += len(token)

    def _forget(self) -> None:
        self._remembered.clear()
        self._remembered_bytes = 0

    def check(self, grant: Grant) -> None:
        """TokenRefused: the grant has expired."""
        if self.has_expired(grant):
            raise TokenRefused(f"the token expired at {written(grant.expires_s)}", grant.user)

    def has_expired(self, grant: Grant) -> bool:
        """Return True if the grant has expired."""
        return grant.expires_s <= self._now()

    def seconds_left(self, grant: Grant) -> float:
        """Return the time, in seconds, until the grant expires."""
        return max(0.0, grant.expires_s - self._now())


def _verifier_of(settings: TokenSettings | None) -> "Verifier | None":
    if settings is None:
        return None
    from rewindmq.engine.identity.verifier import Verifier

    return Verifier(settings)
