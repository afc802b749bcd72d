"""The PROXY protocol, by which a balancer says for whom it speaks (haproxy.org: proxy-protocol.txt, versions 1 and 2).

    v1   PROXY TCP4 10.0.0.7 10.0.0.1 51230 5672 CR LF          at most 107 bytes
    v2   12 bytes of signature, version and command, family, length, addresses, more (which is passed over)

`read_client` takes the header off a socket, and not a byte more: what follows may be TLS. A header has to come from a
balancer. It is read from nobody else, because a client that writes its own header would choose its address.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
TEXT: Final = b"PROXY "
MOST_TEXT: Final = 107
MOST_BYTES: Final = 16 + 2_048  # of a header of version 2: addresses, and what some balancers add
TCP4, TCP6 = 0x11, 0x21

Client = tuple[str, int]


class Balancers:
    """The addresses whose connections begin with a header. `networks`: such as 10.0.0.0/8; None: all addresses."""

    def __init__(self, networks: Sequence[str] | None) -> None:
        self._networks = None if networks is None else [ip_network(each, strict=False) for each in networks]

    def __contains__(self, address: str) -> bool:
        if self._networks is None:
            return True
        if not self._networks:
            return False
        found = ip_address(address.split("%")[0])
        return any(found in network for network in self._networks)


NOBODY: Final = Balancers(())


class BadHeader(Exception):
    """The connection did not begin with a header of the PROXY protocol."""


async def read_client(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> Client | None:
    """Return the client's address and port. None: the balancer speaks for itself, or does not know the client.

    BadHeader. OSError: the connection is gone."""
    header = b""
    while more := missing(header):
        data = await loop.sock_recv(sock, more)
        if not data:
            raise BadHeader("it ended within the header")
        header += data
    return client_in(header)


def missing(header: bytes) -> int:
    """Return the number of bytes to read next without passing the header's end; 0 if it is whole. Raises BadHeader."""
    if SIGNATURE.startswith(header[:12]):
        if len(header) < 16:
            return (16 if len(header) >= 12 else 12) - len(header)  # a whole header of version 1 may have 15
        size = 16 + int.from_bytes(header[14:16], "big")
        if size > MOST_BYTES:
            raise BadHeader(f"a header of {size} bytes is larger than {MOST_BYTES}")
        return size - len(header)
    if not TEXT.startswith(header[:6]):
        raise BadHeader("it begins without a header")
    if header.endswith(b"\r\n"):
        return 0
    if len(header) >= MOST_TEXT:
        raise BadHeader(f"a header of version 1 is longer than {MOST_TEXT} bytes")
    return 1 if header.endswith(b"\r") else min(max(2, 15 - len(header)), MOST_TEXT - len(header))


def client_in(header: bytes) -> Client | None:
    """Return the client in a whole header; None as `read_client`. BadHeader."""
    try:
        return client_in_text(header) if header.startswith(TEXT) else client_in_bytes(header)
    except ValueError as error:
        raise BadHeader(f"the header is wrong: {error}") from None


def client_in_text(header: bytes) -> Client | None:
    """As `client_in`, version 1. ValueError."""
    words = header.decode("ascii").removesuffix("\r\n").split(" ")
    if words[1] == "UNKNOWN":
        return None
    _, family, client, server, port, server_port = words
    kind = {"TCP4": IPv4Address, "TCP6": IPv6Address}.get(family)
    if kind is None:
        raise ValueError(f"family {family}")
    kind(server), port_of(server_port)
    return str(kind(client)), port_of(port)


def client_in_bytes(header: bytes) -> Client | None:
    """As `client_in`, version 2. ValueError."""
    if header[12] == 0x20:  # LOCAL: the balancer looks whether the broker is there
        return None
    if header[12] != 0x21:
        raise ValueError(f"version and command {header[12]:#x}")
    family, addresses = header[13], header[16:]
    if family in (0x00, 0x31):  # not said, or a socket of the balancer's machine
        return None
    if family not in (TCP4, TCP6):
        raise ValueError(f"family {family:#x}")
    size = 4 if family == TCP4 else 16
    if len(addresses) < 2 * size + 4:
        raise ValueError("the addresses are cut short")
    kind = IPv4Address if family == TCP4 else IPv6Address
    return str(kind(addresses[:size])), int.from_bytes(addresses[2 * size : 2 * size + 2], "big")


def port_of(text: str) -> int:
    """Return a port in decimal digits. ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 65_536):
        raise ValueError(f"port {text!r}")
    return int(text)
