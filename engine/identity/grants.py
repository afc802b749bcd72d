"""Who asks for something: a user, with the rights of the user's permissions or with those of a token."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from rewindmq.engine.errors import AccessRefused
from rewindmq.engine.identity.scopes import Scopes

LATEST_SECONDS: Final = 253_402_300_799  # the end of the year 9999


class TokenRefused(AccessRefused):
    """A token does not let its bearer in; the text says why. `user`: of the token, if its signature is right."""

    def __init__(self, text: str, user: str = "") -> None:
        super().__init__(text)
        self.user = user


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """The rights that one token grants to its user, until `expires_s` (Unix time in seconds)."""

    user: str
    scopes: Scopes
    expires_s: int

    @property
    def tags(self) -> tuple[str, ...]:
        """The user's tags."""
        return self.scopes.tags


class Requester(Protocol):
    """A session, an HTTP call or a login. `grant` None: the rights are the user's permissions."""

    @property
    def user(self) -> str: ...

    @property
    def grant(self) -> Grant | None: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """A user who has logged in. `grant`: of the token; None: the user came with a password or a certificate."""

    user: str
    grant: Grant | None = None


def written(seconds: float) -> str:
    """Return a Unix time, as people read it."""
    if not 0 <= seconds <= LATEST_SECONDS:
        return str(seconds)[:20]
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
