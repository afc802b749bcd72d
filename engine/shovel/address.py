"""The address of a broker, as a shovel's command line gives it: amqp://USER@HOST:PORT/VHOST.

A password in an address is refused: other users of the machine see command lines.
"""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

PORTS = {"amqp": 5672, "amqps": 5671}
GUEST = "guest"  # the user and its password, as in RabbitMQ


class BadAddress(ValueError):
    """The address cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """A vhost of a broker, and the login there.

    `ca`: file of the certificate authority of an amqps address; None: the system's."""

    scheme: str
    host: str
    port: int
    vhost: str
    user: str
    password: str = field(repr=False)
    ca: Path | None = None

    @property
    def shown(self) -> str:
        """The address without user and password, for logs and for x-shovelled."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{quote(self.vhost, safe='')}"


def address_from(uri: str, password: str | None, ca: Path | None) -> Address:
    """Read an address. `password`: from its file; None: none was given, which is right for the user guest only.

    BadAddress."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    if parts.password is not None:  # first of all: what follows may show the address
        raise BadAddress("it has a password, which other users of this machine see: put it into a file")
    if parts.scheme not in PORTS or not parts.hostname:
        raise BadAddress(
            f"{uri!r} is not the address of a broker: give amqp://USER@HOST:PORT/VHOST, or amqps:// for TLS"
        )
    if parts.query or parts.fragment:
        raise BadAddress(f"{uri!r} has more than amqp://USER@HOST:PORT/VHOST: leave out what follows the vhost")
    try:
        port = parts.port or PORTS[parts.scheme]
    except ValueError:
        raise BadAddress(f"the port of {uri!r} is not a number from 1 to 65535") from None
    vhost = parts.path.removeprefix("/")
    if "/" in vhost:
        raise BadAddress(
            f"a slash in the name of a vhost is %2F: {parts.scheme}://{parts.netloc}/{quote(vhost, safe='')}"
        )
    user = unquote(parts.username or GUEST)
    if password is None and user != GUEST:
        raise BadAddress(f"user '{user}' needs a file with the password")
    if ca is not None and parts.scheme != "amqps":
        raise BadAddress(f"{uri!r} is not encrypted, so a certificate authority has no use: give amqps://")
    return Address(
        parts.scheme, parts.hostname, port, unquote(vhost) or "/", user, GUEST if password is None else password, ca
    )
