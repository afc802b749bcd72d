"""The PROXY protocol's headers, byte by byte (B-28; haproxy.org, proxy-protocol.txt)."""

import asyncio
import socket
from functools import partial
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewindmq.engine.host.admission import ConnectionQuota
from rewindmq.engine.host.proxy_protocol import (
    MOST_BYTES,
    MOST_TEXT,
    SIGNATURE,
    BadHeader,
    Client,
    missing,
    read_client,
)


def v2(client: str, port: int, command: int = 0x21, more: bytes = b"") -> bytes:
    """A header of version 2 for a TCP client."""
    source = ip_address(client).packed
    addresses = source + source + port.to_bytes(2, "big") + (5672).to_bytes(2, "big") + more
    family = 0x11 if len(source) == 4 else 0x21
    return SIGNATURE + bytes((command, family)) + len(addresses).to_bytes(2, "big") + addresses


def read(sent: bytes, open_after: bool = False) -> tuple[Client | None, bytes]:
    """The client in what a balancer sends, and what is left in the socket behind the header."""

    async def receive() -> tuple[Client | None, bytes]:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            there.sendall(sent)
            if not open_after:
                there.shutdown(socket.SHUT_WR)
            found = await read_client(asyncio.get_running_loop(), here)
            try:
                return found, here.recv(65_536)
            except BlockingIOError:
                return found, b""

    return asyncio.run(asyncio.wait_for(receive(), 10))


@pytest.mark.parametrize(
    ("header", "client"),
    [
        (b"PROXY TCP4 10.0.0.7 10.0.0.1 51230 5672\r\n", ("10.0.0.7", 51230)),
        (b"PROXY TCP6 fe80::7 fe80::1 1 5672\r\n", ("fe80::7", 1)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
        (v2("10.0.0.7", 51230), ("10.0.0.7", 51230)),
        (v2("2001:db8::7", 65535), ("2001:db8::7", 65535)),
        (v2("10.0.0.7", 7, more=b"\x03\x00\x04abcd"), ("10.0.0.7", 7)),
        (v2("10.0.0.7", 7, command=0x20), None),
        (SIGNATURE + b"\x20\x00\x00\x00", None),
        (SIGNATURE + b"\x21\x31\x00\xd8" + b"/" * 216, None),
    ],
)
def test_b28_a_header_says_who_the_client_is_and_no_byte_more_is_read(header: bytes, client: Client | None) -> None:
    for behind in (b"", b"AMQP\x00\x00\x09\x01", b"\x16\x03\x01"):
        assert read(header + behind) == (client, behind)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"AMQP\x00\x00\x09\x01", "begins without a header"),
        (b"\x16\x03\x01\x02", "begins without a header"),
        (b"PROXY TCP4 10.0.0.7 10.0.0.1 51230 5672", "ended within"),
        (b"PROXY TCP4 10.0.0.7 10.0.0.1 51230 99999\r\n", "port '99999'"),
        (b"PROXY TCP4 10.0.0.7 10.0.0.1 -1 5672\r\n", "port '-1'"),
        (b"PROXY TCP4 fe80::7 fe80::1 1 2\r\n", "fe80"),
        (b"PROXY TCP4 localhost 10.0.0.1 1 2\r\n", "localhost"),
        (b"PROXY UDP4 10.0.0.7 10.0.0.1 1 2\r\n", "family UDP4"),
        (b"PROXY TCP4 10.0.0.7\r\n", "wrong"),
        (b"PROXY TCP4 " + b"1" * 200, f"longer than {MOST_TEXT}"),
        (b"PROXY \xff\xff\xff\xff\xff\xff\xff\r\n", "wrong"),
        (SIGNATURE + b"\x21\x12\x00\x0c" + bytes(12), "family 0x12"),
        (SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12), "version and command 0x31"),
        (SIGNATURE + b"\x21\x11\x00\x04" + bytes(4), "cut short"),
        (SIGNATURE + b"\x21\x11\xff\xff", f"larger than {MOST_BYTES}"),
        (SIGNATURE + b"\x21\x11\x00\x0c", "ended within"),
        (b"", "ended within"),
    ],
)
def test_b28_what_is_no_header_is_refused(sent: bytes, why: str) -> None:
    with pytest.raises(BadHeader, match=why):
        read(sent)


def test_b28_a_client_without_a_header_is_refused_before_it_sends_more() -> None:
    with pytest.raises(BadHeader):
        read(b"AMQP\x00\x00\x09\x01", open_after=True)


@given(st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", SIGNATURE, SIGNATURE + b"\x21\x11\x00"]))
def test_b28_any_bytes_are_a_header_or_refused_within_bounds(data: bytes, begin: bytes) -> None:
    sent, taken = begin + data, 0
    try:
        while (more := missing(sent[:taken])) and taken < len(sent):
            assert more > 0
            taken += more
            assert taken <= MOST_BYTES
        read(sent)
    except BadHeader:
        pass


def test_b28_the_door_counts_the_client_and_not_the_balancer() -> None:
    quota = ConnectionQuota("amqp", 100)
    entered_ones = [quota.enter("10.0.0.1") for _ in range(quota.most_of_network)]
    assert quota.enter("10.0.0.1") is None
    for number, admitted in enumerate(entered_ones):
        assert admitted is not None
        assert admitted.speaks_for((f"10.1.{number}.1", 1))
    late = quota.enter("10.0.0.1")
    assert late is not None
    assert late.speaks_for(None)
    for admitted in (*entered_ones, late):
        assert admitted is not None
        admitted.leave()
    assert (quota.unknown, quota.by_network) == (0, {})


def test_b28_one_client_behind_a_balancer_has_the_share_of_one() -> None:
    quota = ConnectionQuota("amqp", 100)
    dropped: list[int] = []
    for number in range(quota.most_of_network + 3):
        admitted = quota.enter("10.0.0.1")
        assert admitted is not None
        admitted.wait(partial(dropped.append, number))
        assert admitted.speaks_for(("10.1.0.7", 1))
    assert dropped == [0, 1, 2], "its oldest connections make room"
    assert quota.by_network == {"10.1.0": quota.most_of_network}
    assert quota.refused["network"] == 3
