"""TLS for AMQP clients: the listener's context, and a client's user name from its certificate (SASL EXTERNAL).

The management API over TLS shows the same server certificate. It does not ask clients for one.

Names and defaults are RabbitMQ's (`ssl_options`, `ssl_cert_login_from`):
    verify_peer              `ca` must have signed a client's certificate (else the broker ignores the certificate)
    fail_if_no_peer_cert     a client must have a certificate
    login_from               the broker offers EXTERNAL. The user's name is the certificate's subject
                             (distinguished_name, RFC 4514: "O=client,CN=bunny") or its common_name. None: the broker
                             does not offer EXTERNAL
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# The subject of a certificate, in the form of Python's ssl: RDNs in order, each with some (attribute, value).
Subject = tuple[tuple[tuple[str, str], ...], ...]

# rabbit_cert_info.erl
ATTRIBUTES = {
    "surname": "SN",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "title": "TITLE",
    "countryName": "C",
    "serialNumber": "SERIALNUMBER",
    "pseudonym": "PSEUDONYM",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "streetAddress": "STREET",
    "userId": "UID",
}
ESCAPED = b'"+,;<>\\'


@dataclass(frozen=True, slots=True)
class TlsListener:
    """The settings of TLS.

    `port` is AMQP's. None: TLS is for the management API only."""

    port: int | None
    certificate: Path
    key: Path
    ca: Path | None = None
    verify_peer: bool = False
    fail_if_no_peer_cert: bool = False
    login_from: str | None = None

    def context(self) -> ssl.SSLContext:
        """Make the context of the AMQP listener.

        OSError (ssl.SSLError is one): a file is missing or damaged."""
        context = self.http_context()
        if self.ca is not None:
            context.load_verify_locations(self.ca)
        if self.verify_peer:
            context.verify_mode = ssl.CERT_REQUIRED if self.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
        return context

    def http_context(self) -> ssl.SSLContext:
        """Make the context of the management API's listener. Errors as `context`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context

    def peer(self, tls: ssl.SSLObject) -> "TlsPeer":
        """Describe the client of a TLS connection."""
        certificate = tls.getpeercert() or {}  # empty unless it was verified
        subject: Subject = certificate.get("subject", ())  # type: ignore[assignment]
        cipher = tls.cipher()
        name = None
        if subject and self.login_from is not None:
            name = common_name(subject) if self.login_from == "common_name" else distinguished_name(subject)
        return TlsPeer(
            tls.version() or "",
            cipher[0] if cipher else "",
            distinguished_name(subject),
            name,
            self.login_from is not None,
        )


class LiveContext:
    """The context of a listener, which is made anew when a certificate changes. Open connections keep the one before.

    OSError (ssl.SSLError is one): a file is missing or damaged."""

    def __init__(self, make: Callable[[TlsListener], ssl.SSLContext], settings: TlsListener) -> None:
        self._make = make
        self.current = make(settings)
        self._prepared = self.current

    def prepare(self, settings: TlsListener) -> None:
        """Make the next context. Connections do not get it yet. Errors as the constructor's."""
        self._prepared = self._make(settings)

    def renew(self) -> None:
        """Give new connections the context that was prepared."""
        self.current = self._prepared


@dataclass(frozen=True, slots=True)
class TlsPeer:
    """A client over TLS.

    `user` is the name in its certificate. `external`: the client may log in by that name."""

    version: str
    cipher: str
    subject: str
    user: str | None
    external: bool


def common_name(subject: Subject) -> str | None:
    """Join the common names of a subject with commas; None if it has none."""
    return ",".join(value for pairs in subject for attribute, value in pairs if attribute == "commonName") or None


def distinguished_name(subject: Subject) -> str:
    """Write a subject as RFC 4514 does: the last RDN comes first."""
    return ",".join(
        "+".join(f"{ATTRIBUTES.get(attribute, attribute)}={escaped(value)}" for attribute, value in pairs)
        for pairs in reversed(subject)
    )


def escaped(value: str) -> str:
    """Escape an attribute's value as rabbit_cert_info.erl does.

    It escapes RFC 4514's special characters, and byte by byte all bytes that are not printable ASCII."""
    data = value.encode()
    parts = []
    for at, byte in enumerate(data):
        if byte in ESCAPED or (at == 0 and byte in b" #") or (at == len(data) - 1 and byte == 0x20):
            parts.append("\\" + chr(byte))
        else:
            parts.append(chr(byte) if 32 <= byte < 126 else f"\\{byte:02X}")
    return "".join(parts)
