"""Which tokens are taken, and where the keys come from that verify them."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

# None of them is symmetric: a public key must not be taken for a shared secret.
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
    "Ed25519",
)

# Below the issuer: the provider's configuration (OpenID Connect Discovery).
DISCOVERY: Final = "/.well-known/openid-configuration"


class BadKeys(Exception):
    """No set of keys can be used; the text says why."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """`keys`: a file or a URL; "": what the issuer's configuration says. `authority`: a file with the certificates that
    the provider's server must have one of; None: those that the system trusts. `client_id`: the desk's name at the
    provider; "": nobody signs in there by the desk. `scopes`: what the desk asks for."""

    resource_server_id: str
    issuer: str = ""
    keys: str = ""
    username_claims: tuple[str, ...] = ("sub", "client_id")
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    authority: Path | None = None
    client_id: str = ""
    scopes: str = "openid profile"

    @property
    def place(self) -> tuple[str, str, Path | None]:
        """Where the keys come from."""
        return self.keys, self.issuer, self.authority


def algorithms_of(text: str) -> tuple[str, ...]:
    """Return the algorithms in a text with commas. ValueError: one is not known, or symmetric."""
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in found:
        if each not in ALGORITHMS:
            raise ValueError(f"'{each}' is none of {', '.join(ALGORITHMS)}")
    if not found:
        raise ValueError("name at least one algorithm")
    return found


def scopes_of(text: str) -> str:
    """Return scopes with blanks between them. Raises ValueError without openid, which a sign-in needs."""
    if "openid" not in text.split():
        raise ValueError("'openid' has to be one of them")
    return " ".join(text.split())


def place_of(text: str) -> str:
    """Return a file, as an absolute path, or a URL. ValueError: there is no such file, or as `checked_url`."""
    if "://" in text:
        return checked_url(text)
    if not Path(text).is_file():
        raise ValueError(f"file '{text}' does not exist")
    return str(Path(text).absolute())


def checked_url(text: str) -> str:
    """Return the URL itself. ValueError: keys that come from there could be anybody's."""
    parts = urlsplit(text)
    if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))):
        return text
    raise ValueError(f"'{text}' is not an https URL (http is for the loopback address only)")


def is_loopback(host: str) -> bool:
    """Return True if the host is this machine itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
