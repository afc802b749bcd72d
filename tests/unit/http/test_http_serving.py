"""Connections of the management API: what a client may keep the broker waiting for, over real sockets."""

import asyncio
import contextlib
import datetime
import gc
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import h11
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rewindmq.engine.host.admission import ConnectionQuota, bound
from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.http import pace
from rewindmq.engine.http import server as serving
from rewindmq.engine.http.pace import EVENTS_AT_ONCE, MOST_HEADERS
from rewindmq.engine.tls import LiveContext, TlsListener

ROOT = Path(__file__).resolve().parents[3]
ANSWER = b"x" * 40_000_000  # more than the buffers of two sockets ever hold


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the request's body, and answers with its size, or (at /large) with more than sockets hold."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    content = ANSWER if scope["path"] == "/large" else b"%d" % len(body)
    headers = [(b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


Scenario = Callable[[int, ConnectionQuota], Awaitable[None]]


class MovedLoop(uvloop.Loop):
    """A loop whose clock a test moves. Its timers do not go with it."""

    ahead_seconds = 0.0

    def time(self) -> float:
        return float(super().time()) + self.ahead_seconds


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks for late clients ten times a second."""
    monkeypatch.setattr(serving, "TICKS", 1)


def run(scenario: Scenario, share: int = 40, tls: LiveContext | None = None) -> None:
    async def main() -> None:
        (sock,) = bound("127.0.0.1", 0)
        quota = ConnectionQuota("http", share)
        served = asyncio.create_task(serving.serve(app, [(sock, tls)], quota, LoopShare(), lambda: None))
        try:
            await asyncio.wait_for(scenario(sock.getsockname()[1], quota), 30)
        finally:
            served.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await served
        assert (quota.logged_in, quota.unknown) == (0, 0)

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(main())


async def ask(port: int, *parts: bytes, reader_limit: int = 65_536) -> tuple[asyncio.StreamReader, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=reader_limit)
    for part in parts:
        writer.write(part)
    return reader, writer


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD], ids=["nothing", "half a line", "half a header"])
def test_a_client_that_does_not_finish_its_header_is_dropped(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.3)

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await ask(port, sent)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        while quota.unknown:
            await asyncio.sleep(0.01)

    run(scenario)


def test_so_is_one_that_sends_its_header_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.5)

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await ask(port, HEAD)
        gone = asyncio.create_task(reader.read())
        sent = 0
        while not gone.done():
            writer.write(b"X-Slow: 1\r\n")
            sent += 1
            await asyncio.sleep(0.05)
        assert sent < 300
        with contextlib.suppress(ConnectionError):
            assert await gone == b""
        writer.close()

    run(scenario)


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "BODY_SECONDS", 0.3)

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await ask(port, HEAD + b"\r\n", b"abc")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "STALL_SECONDS", 0.3)
    look = serving.HttpProtocol.look
    aborted: list[str] = []  # what the server waited for

    def noted(protocol: serving.HttpProtocol, now: float) -> None:
        look(protocol, now)
        if protocol.transport.is_closing():
            aborted.append(protocol._waits_for)

    monkeypatch.setattr(serving.HttpProtocol, "look", noted)

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        _, writer = await ask(port, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n", reader_limit=1_024)
        while not quota.unknown:
            await asyncio.sleep(0.01)
        while quota.unknown:  # the client reads nothing beyond its first kilobytes, and is dropped
            await asyncio.sleep(0.01)
        assert aborted == ["stall"]
        writer.close()

    run(scenario)


def test_a_client_that_is_idle_between_two_requests_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within KEEP_ALIVE_SECONDS, which is what docs/operators/limits.md promises."""
    promised = " ".join((ROOT / "docs" / "operators" / "limits.md").read_text().split())
    assert f"a client that sends no request for {serving.KEEP_ALIVE_SECONDS} seconds" in promised
    monkeypatch.setattr(serving, "KEEP_ALIVE_SECONDS", 0.05)
    drop = serving.HttpProtocol.timeout_keep_alive_handler
    waited: list[float] = []

    def noted(protocol: serving.HttpProtocol) -> None:
        waited.append(protocol.timeout_keep_alive)
        drop(protocol)

    monkeypatch.setattr(serving.HttpProtocol, "timeout_keep_alive_handler", noted)

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await ask(port, HEAD + b"\r\n", b"hello")
        answer = await reader.read()  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"5")
        assert waited == [0.05]
        writer.close()

    run(scenario)


def test_an_active_client_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests, one after the other, over longer than any of the limits."""
    monkeypatch.setattr(serving, "HEADER_SECONDS", 20.0)
    monkeypatch.setattr(serving, "BODY_SECONDS", 20.0)
    look = serving.HttpProtocol.look
    looked = asyncio.Event()

    def noted(protocol: serving.HttpProtocol, now: float) -> None:
        look(protocol, now)
        looked.set()

    monkeypatch.setattr(serving.HttpProtocol, "look", noted)

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        reader, writer = await ask(port)
        for _ in range(6):
            writer.write(HEAD + b"\r\nhello")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(1) == b"5"
            loop.ahead_seconds += 15
            looked.clear()
            await looked.wait()
        loop.ahead_seconds += 15
        assert await reader.read() == b"", "silence for twice as long is too much"
        writer.close()

    run(scenario)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await reader.read() == b""
    return True


def test_a_connection_above_the_limit_displaces_the_oldest_of_its_network() -> None:
    """All connections here are of one network; tests/unit/host/test_doors.py has several."""

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        held = [await ask(port, b"", HEAD + b"\r\n")]
        while not quota.unknown:
            await asyncio.sleep(0.01)
        held += [await ask(port, HEAD) for _ in range(quota.most_of_network - 1)]
        for number in range(5):
            reader, writer = await ask(port, HEAD + b"\r\nhello")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            assert await is_closed(held[number][0])
            held.append((reader, writer))
        assert quota.refused["network"] == 5
        for _, each in held:
            each.close()

    run(scenario, 40)


def test_a_connection_is_told_to_come_again_when_all_verify_passwords() -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        with contextlib.ExitStack() as stack:
            held = [await ask(port) for _ in range(quota.most_of_network)]
            while quota.unknown < quota.most_of_network:
                await asyncio.sleep(0.01)
            for admitted in list(quota.waiting["127.0.0"]):
                stack.enter_context(admitted.presenting())
            reader, writer = await ask(port)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"\r\nretry-after: 5\r\n" in answer
            assert b"too many connections" in answer
            writer.close()
        reader, writer = await ask(port, HEAD + b"\r\nhello")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        for _, each in (*held, (reader, writer)):
            each.close()

    run(scenario, 8)


# -- slices -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that collects the number of events parsed in each slice."""
    found: list[int] = []
    read, next_event = serving.HttpProtocol._read, h11.Connection.next_event

    def noted(protocol: serving.HttpProtocol) -> None:
        found.append(0)
        read(protocol)

    def counted(parser: h11.Connection) -> Any:
        found[-1] += 1
        return next_event(parser)

    monkeypatch.setattr(serving.HttpProtocol, "_read", noted)
    monkeypatch.setattr(h11.Connection, "next_event", counted)
    return found


async def answer_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head of an answer, and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(length)


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_body_in_chunks_of_a_byte_is_parsed_in_slices(slices: list[int]) -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await ask(port, CHUNKED + b"1\r\n{\r\n" * 20_000 + b"0\r\n\r\n")
        head, body = await answer_of(reader)
        assert (head[:13], body) == (b"HTTP/1.1 200 ", b"20000")
        assert max(slices) <= EVENTS_AT_ONCE < 20_000 / EVENTS_AT_ONCE <= len(slices)
        writer.write(HEAD + b"\r\nhello")
        assert (await answer_of(reader))[1] == b"5", "the connection is as good as new"
        writer.close()

    run(scenario)


@pytest.mark.parametrize(
    "size", [1, 7, EVENTS_AT_ONCE - 2, EVENTS_AT_ONCE - 1, EVENTS_AT_ONCE, EVENTS_AT_ONCE + 1, 977]
)
def test_where_a_slice_ends_changes_no_request(size: int, slices: list[int]) -> None:
    """Requests with bodies of so many chunks, sent together and in odd parts."""

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        request = CHUNKED + b"2\r\nab\r\n" * size + b"0\r\n\r\n"
        sent = (request + HEAD + b"\r\nhello") * 3
        reader, writer = await ask(port)
        for first in range(0, len(sent), 331):
            writer.write(sent[first : first + 331])
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await answer_of(reader))[1] == b"%d" % (2 * size)
            assert (await answer_of(reader))[1] == b"5"
        assert max(slices) <= EVENTS_AT_ONCE
        writer.close()

    run(scenario)


def test_each_request_begins_in_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        turns, began = 0, []

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            began.append(turns)
            await app(scope, receive, send)

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        answer_all_by(noting, monkeypatch)
        counting = asyncio.create_task(count())
        clients = [await ask(port, HEAD.replace(b"5", b"0") + b"\r\n" + (HEAD + b"\r\nhello") * 9) for _ in range(10)]
        answers = await asyncio.gather(*(all_of(reader, 10) for reader, _ in clients))
        counting.cancel()
        assert answers == [[b"0", *[b"5"] * 9]] * 10
        assert len(set(began)) == len(began) == 100, "no turn of the loop began two of them"
        for _, writer in clients:
            writer.close()

    run(scenario)


def answer_all_by(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this application answer on connections that begin from now on."""
    begin = serving.HttpProtocol.connection_made

    def begun(protocol: serving.HttpProtocol, transport: asyncio.BaseTransport) -> None:
        begin(protocol, transport)
        protocol._api = api

    monkeypatch.setattr(serving.HttpProtocol, "connection_made", begun)


async def all_of(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    return [(await answer_of(reader))[1] for _ in range(count)]


def served() -> list[serving.HttpProtocol]:
    return [each for each in gc.get_objects() if isinstance(each, serving.HttpProtocol)]


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize(("headers", "status"), [(MOST_HEADERS, b"200"), (MOST_HEADERS + 1, b"400"), (5_000, b"400")])
def test_a_header_has_few_lines_as_in_rabbitmq(headers: int, status: bytes, end: bytes, slices: list[int]) -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        body = b"\n" * 1_000
        lines = [b"POST / HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body), *[b"a:"] * (headers - 2), b"", b""]
        reader, writer = await ask(port, end.join(lines) + body)
        head, _ = await answer_of(reader) if status == b"200" else (await reader.read(), b"")
        assert head.startswith(b"HTTP/1.1 " + status)
        writer.close()

    run(scenario)


@pytest.mark.parametrize("long", [b"1;" + b"x" * 20_000, b"0\r\n" + b"a:\r\n" * 5_000], ids=["chunk", "trailer"])
def test_lines_between_chunks_are_short(long: bytes) -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await ask(port, CHUNKED, long)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()

    run(scenario)


# -- answers before the end of a request ------------------------------------------------------------------------------


async def refusing(scope: Any, receive: Any, send: Any) -> None:
    """Answers without a look at the body."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_all_by(refusing, monkeypatch)


@pytest.mark.usefixtures("refuses")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_refused_request_is_not_read_to_its_end_but_is_answered(chunked: bool, slices: list[int]) -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        part = b"1\r\n{\r\n" * 100_000
        head = CHUNKED if chunked else HEAD.replace(b"5", b"90000000") + b"\r\n"
        reader, writer = await ask(port, head)
        for _ in range(5):  # 3 MB, before the client looks for an answer
            writer.write(part)
            await writer.drain()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"\r\n\r\nno")
        assert sum(slices) < 20 * EVENTS_AT_ONCE
        writer.close()
        while quota.unknown:
            await asyncio.sleep(0.01)

    run(scenario)


@pytest.mark.usefixtures("refuses")
def test_a_refused_client_that_sends_on_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LINGER_SECONDS", 0.3)
    monkeypatch.setattr(serving, "MOST_THROWN", 1_000_000)

    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await ask(port, CHUNKED)
        assert (await answer_of(reader))[1] == b"no"
        with contextlib.suppress(ConnectionError):
            while quota.unknown:
                writer.write(b"1\r\n{\r\n" * 10_000)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        while quota.unknown:
            await asyncio.sleep(0.01)

    run(scenario)


@pytest.mark.usefixtures("refuses")
def test_a_refused_request_that_came_whole_leaves_the_connection_open() -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await ask(port)
        for _ in range(3):
            writer.write(HEAD + b"\r\nhello")
            head, body = await answer_of(reader)
            assert (body, b"connection: close" in head.lower()) == (b"no", False)
        writer.close()

    run(scenario)


def test_nothing_of_a_closed_connection_waits_for_the_garbage_collector() -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        for sent in (HEAD, HEAD + b"\r\n{", HEAD + b"\r\nhello"):
            _, writer = await ask(port, sent)
            while not quota.unknown:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            writer.transport.abort()
            while quota.unknown:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert served() == []

    gc.collect()
    gc.disable()
    try:
        run(scenario)
    finally:
        gc.enable()


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[LiveContext, ssl.SSLContext]:
    """The contexts of a listener and of its clients."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    now = datetime.datetime.now(datetime.UTC)
    made = made.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    signed = made.add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
    ).sign(key, hashes.SHA256())
    certificate = signed.public_bytes(serialization.Encoding.PEM)
    pem = tmp_path_factory.mktemp("tls") / "server.pem"
    form = serialization.PrivateFormat.PKCS8
    pem.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()) + certificate)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    client = ssl.create_default_context(cadata=certificate.decode())
    return LiveContext(lambda _: server, cast(TlsListener, None)), client


Contexts = tuple[LiveContext, ssl.SSLContext]


def test_a_tls_handshake_that_never_begins_makes_room(contexts: Contexts) -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        held = [await ask(port) for _ in range(quota.most_of_network)]
        while quota.unknown < quota.most_of_network:
            await asyncio.sleep(0.01)
        for number in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=contexts[1])
            writer.write(HEAD + b"\r\nhello")
            assert (await answer_of(reader))[1] == b"5"
            assert await is_closed(held[number][0])
            held.append((reader, writer))
        assert (quota.unknown, quota.refused["network"]) == (quota.most_of_network, 3)
        for _, writer in held:
            writer.close()

    run(scenario, tls=contexts[0])


@pytest.mark.usefixtures("refuses")
def test_a_client_over_tls_sees_why_it_was_refused(contexts: Contexts, slices: list[int]) -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=contexts[1])
        writer.write(CHUNKED)
        for _ in range(5):
            writer.write(b"1\r\n{\r\n" * 100_000)
            await writer.drain()
        assert (await answer_of(reader))[1] == b"no"
        assert sum(slices) < 20 * EVENTS_AT_ONCE
        writer.close()
        while quota.unknown:
            await asyncio.sleep(0.01)

    run(scenario, tls=contexts[0])


def test_a_tls_record_for_each_byte_is_parsed_in_slices(contexts: Contexts, slices: list[int]) -> None:
    async def scenario(port: int, quota: ConnectionQuota) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=contexts[1])
        for byte in CHUNKED + b"1\r\n{\r\n" * 2_000 + b"0\r\n\r\n":
            writer.write(bytes([byte]))
        assert (await answer_of(reader))[1] == b"2000"
        assert max(slices) <= EVENTS_AT_ONCE
        writer.close()

    run(scenario, tls=contexts[0])
