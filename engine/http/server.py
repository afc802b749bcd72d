"""Serves the management API: uvicorn's HTTP/1.1, with admission of connections and time limits for clients.

engine/host/admission.py admits connections.

    HEADER_SECONDS       from the connection, or from the answer before, until a request's header is there
    BODY_SECONDS         from the header until the whole body is
    STALL_SECONDS        an answer while the client takes not a byte of it
    KEEP_ALIVE_SECONDS   from an answer until the first byte of the next request

A header has 16 KiB at most.

A connection is read in the API's share of the loop's time (pace.py), and each request begins in a separate turn. A
request that is answered before all of it came is not read to its end: the connection is closed after the answer.

A connection counts as logged in from its first answered request with a right password on (`AdmittedConnection.log_in`).
"""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER, HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol

from rewindmq.engine.host.admission import AdmittedConnection, ConnectionQuota, ListeningSocket
from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.host.proxy_protocol import NOBODY, Balancers
from rewindmq.engine.http.pace import EVENTS_AT_ONCE, MOST_THROWN, PacedTransport, Parser
from rewindmq.engine.tls import LiveContext, TlsPeer

HEADER_SECONDS = 10.0
BODY_SECONDS = 120.0
STALL_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 5  # an idle connection, between two requests
MOST_HEADER_BYTES = PIECE_BYTES = 16_384
TICKS = 10  # uvicorn's tenths of a second between two looks for late clients
GRACEFUL_SECONDS = 3
RETRY_AFTER_SECONDS = 5

# A bound socket, with the TLS context if it is over TLS.
Listening = tuple[socket.socket, LiveContext | None]


def refusal() -> bytes:
    """Return the answer to a client that the quota does not let in."""
    content = {"error": "service_unavailable", "reason": "too many connections: try again, or close some"}
    body = json.dumps(content, allow_nan=False).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"retry-after: {RETRY_AFTER_SECONDS}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class HttpProtocol(H11Protocol):
    """uvicorn's protocol of one connection, admitted by a quota."""

    conn: Parser
    paced: PacedTransport

    def __init__(self, server: "_Server", admitted: AdmittedConnection) -> None:
        super().__init__(server.config, server.server_state, {})
        self.admitted = admitted
        self.share = server.share
        self.conn = Parser(h11.SERVER, MOST_HEADER_BYTES)
        self._api, self.app = self.app, self._answer
        self._received = bytearray()  # and not given to the parser yet
        self._in_line = False
        self._cut = False  # the parser has events for the next slice
        self._unread = False  # the answer began before the request ended
        self._thrown = 0
        self._waits_for = ""  # the client's part: "header", "body", "stall" (of an answer); "": the client waits for us
        self._since = 0.0
        self._unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self.paced = PacedTransport(transport, self)
        super().connection_made(cast(asyncio.Transport, self.paced))
        self.admitted.wait(transport.abort)
        self.app_state["admitted"] = self.admitted
        if self.admitted.proxied:
            self.app_state["balancer"] = self.client or ("unknown", 0)
            self.client = self.admitted.client  # None: the balancer does not say who it is
        tls = self.transport.get_extra_info("ssl_object")
        if tls is not None:
            cipher = tls.cipher()
            self.app_state["tls"] = TlsPeer(tls.version() or "", cipher[0] if cipher else "", "", None, False)
        self._waits_for, self._since = "header", self.loop.time()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._received += data
        self.paced.hold(True)  # at once: it may be a small part of what TLS records or a full buffer have
        self.stand_in_line()

    def stand_in_line(self) -> None:
        if not self._in_line:
            self._in_line = True
            self.share.call(self._read)

    def _read(self) -> None:
        """Parse a slice of what was received. Bytes that nobody wants any longer are thrown away at the same pace."""
        self._in_line = False
        if self._unread or self.transport.is_closing():
            self._thrown += len(self._received)
            self._received.clear()
        elif not self.flow.read_paused:
            self.conn.events_left = EVENTS_AT_ONCE
            if self._cut:
                self.handle_events()
            elif self._received:
                piece = bytes(self._received[:PIECE_BYTES])
                del self._received[:PIECE_BYTES]
                super().data_received(piece)
            self._cut = not self.conn.events_left
            if self._cut or self._received:
                self.stand_in_line()
        self.paced.hold(len(self._received) > HIGH_WATER_LIMIT or self._thrown > MOST_THROWN)

    def client_sends(self) -> bool:
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for a request, in a separate turn of the loop."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                self._unread = True
                message["headers"] = [*message.get("headers", ()), CLOSE_HEADER]
                self.transport.resume_reading()
            await send(message)

        await self.share.turn()
        await self._api(scope, receive, sent)

    def connection_lost(self, exc: Exception | None) -> None:
        self.admitted.leave()
        super().connection_lost(exc)
        self.paced.protocol = None  # circles would wait for the garbage collector, which runs rarely
        self.app = self._api
        self._unset_keepalive_if_required()

    def on_response_complete(self) -> None:
        self._waits_for, self._since = "header", self.loop.time()
        self.conn.events_left = 0  # a request that came with this one has its own turn
        super().on_response_complete()
        if self._received or self.conn.trailing_data[0]:
            self._cut = bool(self.conn.trailing_data[0])
            self._unset_keepalive_if_required()
            self.stand_in_line()

    def look(self, now: float) -> None:
        """Drop a client that keeps us waiting for too long. Called once a second."""
        unsent = self.transport.get_write_buffer_size()
        waits_for = self._waiting(unsent)
        if waits_for != self._waits_for or (waits_for == "stall" and unsent < self._unsent):
            self._waits_for, self._since = waits_for, now
        self._unsent = unsent
        most = {"header": HEADER_SECONDS, "body": BODY_SECONDS, "stall": STALL_SECONDS}.get(waits_for)
        if most is not None and now - self._since > most:
            self.transport.abort()

    def _waiting(self, unsent: int) -> str:
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if unsent:
            return "stall"
        answered = self.cycle is None or self.cycle.response_complete
        return "header" if answered else ""


class _Server(uvicorn.Server):
    """uvicorn with our listeners, without its signal handlers (the broker's own process decides when to stop)."""

    def __init__(
        self,
        config: uvicorn.Config,
        listening: Sequence[Listening],
        quota: ConnectionQuota,
        share: LoopShare,
        end_streams: Callable[[], None],
        balancers: Balancers,
    ) -> None:
        super().__init__(config)
        self._end_streams = end_streams
        self._balancers = balancers
        self.share = share
        self._listening = listening
        self._quota = quota
        self._listeners: list[ListeningSocket] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        self.servers = []
        self._listeners = [
            ListeningSocket(
                sock,
                self._quota,
                lambda admitted: HttpProtocol(self, admitted),
                context,
                HEADER_SECONDS,
                refusal(),
                self._balancers,
            )
            for sock, context in self._listening
        ]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                cast(HttpProtocol, connection).look(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: Any = None) -> None:
        for listener in self._listeners:
            listener.close()
        self._end_streams()
        await super().shutdown()


async def serve(
    app: ASGIApp,
    listening: Sequence[Listening],
    quota: ConnectionQuota,
    share: LoopShare,
    end_streams: Callable[[], None],
    balancers: Balancers = NOBODY,
) -> None:
    """Serve these listeners, in this share of the loop's time, until cancelled.

    Connections from `balancers` begin with a header of the PROXY protocol.

    Then it takes no more requests, ends the live streams, lets the others finish (3 seconds at most), and raises
    CancelledError."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a warning is a client's fault, and there may be many
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
    config.load()
    server = _Server(config, listening, quota, share, end_streams, balancers)
    task = asyncio.create_task(server.serve())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        server.should_exit = True
        await task
        raise
    finally:
        for sock, _ in listening:
            sock.close()
