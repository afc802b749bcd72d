"""TLS for AMQP clients: the listener's context, and who a client is by its certificate (SASL EXTERNAL). The management
API over TLS shows the same certificate, and asks for none.

Names and defaults are RabbitMQ's (`ssl_options`, `ssl_cert_login_from`):
    verify_peer              a client's certificate has to be signed by `ca` (else nobody looks at it)
    fail_if_no_peer_cert     and it has to have one
    login_from               EXTERNAL is offered, and the user's name is the certificate's subject (distinguished_name,
                             RFC 4514: "O=client,CN=bunny") or its common_name. None: EXTERNAL is not offered
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

# Of a certificate, as Python's ssl tells it: RDNs in order, each some (attribute, value).
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
    """How TLS is set up. `port` is that of AMQP; None: TLS is for the management API only."""

    port: int | None
    certificate: Path
    key: Path
    ca: Path | None = None
    verify_peer: bool = False
    fail_if_no_peer_cert: bool = False
    login_from: str | None = None

    def context(self) -> ssl.SSLContext:
        """OSError (ssl.SSLError is one) when a file is not there or not what it should be."""
        context = self.http_context()
        if self.ca is not None:
            context.load_verify_locations(self.ca)
        if self.verify_peer:
            context.verify_mode = ssl.CERT_REQUIRED if self.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
        return context

    def http_context(self) -> ssl.SSLContext:
        """The same, of the management API."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context

    def peer(self, tls: ssl.SSLObject) -> "TlsPeer":
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


@dataclass(frozen=True, slots=True)
class TlsPeer:
    """A client over TLS. `user`: who its certificate says it is; `external`: it may log in as such."""

    version: str
    cipher: str
    subject: str
    user: str | None
    external: bool


def common_name(subject: Subject) -> str | None:
    return ",".join(value for pairs in subject for attribute, value in pairs if attribute == "commonName") or None


def distinguished_name(subject: Subject) -> str:
    """RFC 4514: the last RDN first."""
    return ",".join(
        "+".join(f"{ATTRIBUTES.get(attribute, attribute)}={escaped(value)}" for attribute, value in pairs)
        for pairs in reversed(subject)
    )


def escaped(value: str) -> str:
    """As rabbit_cert_info.erl: what RFC 4514 wants, and all that is not printable ASCII, byte by byte."""
    data = value.encode()
    parts = []
    for at, byte in enumerate(data):
        if byte in ESCAPED or (at == 0 and byte in b" #") or (at == len(data) - 1 and byte == 0x20):
            parts.append("\\" + chr(byte))
        else:
            parts.append(chr(byte) if 32 <= byte < 126 else f"\\{byte:02X}")
    return "".join(parts)
