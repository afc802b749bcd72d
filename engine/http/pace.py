"""Bounds what one HTTP connection makes the loop do at once: h11 in slices, and a transport that is read when there is
time for it.

A chunk of a body costs 4 microseconds to parse and may be one byte long, so a slice ends between two events and not
after a number of bytes. What h11 cannot interrupt is small: a header has MOST_HEADERS lines, as in RabbitMQ (cowboy's
max_headers), and a chunk's size line or a trailer has MOST_LINE bytes.
"""

import asyncio
from typing import Any, Final, Protocol

import h11

EVENTS_AT_ONCE: Final = 100
MOST_HEADERS: Final = 100
MOST_LINE: Final = 1_024
LINGER_SECONDS: Final = 1.0  # a client that still sends has this long to read its answer, as with cowboy
MOST_THROWN: Final = 16_777_216  # bytes of an unwanted body that are read


class PacedParser(h11.Connection):
    """h11 for a server; it wants more data when it has parsed `events_left` events."""

    events_left = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse one event, within the bounds. RemoteProtocolError."""
        if not self.events_left:
            return h11.NEED_DATA
        self.events_left -= 1
        if self.their_state is h11.IDLE:
            *lines, _ = self.trailing_data[0].split(b"\n", MOST_HEADERS + 2)
            if len(lines) == MOST_HEADERS + 2 and not {b"", b"\r"} & set(lines):
                raise h11.RemoteProtocolError(f"more than {MOST_HEADERS} headers", 431)
        event = super().next_event()
        if event is h11.NEED_DATA and self.their_state is h11.SEND_BODY and len(self.trailing_data[0]) > MOST_LINE:
            raise h11.RemoteProtocolError(f"a line between chunks has more than {MOST_LINE} bytes", 431)
        return event


class PacedReader(Protocol):
    """The reader of a paced transport (server.py `HttpProtocol`)."""

    def stand_in_line(self) -> None:
        """Parse what was read, when it is the connection's turn."""

    def client_sends(self) -> bool:
        """Return True if the client has not sent all of its request."""


class PacedTransport:
    """A transport for uvicorn, with two reasons not to read: uvicorn's own, and `hold`, for bytes that wait.

    `close` lets a client that still sends read its answer: the system would throw the answer away with the connection
    if bytes came for a closed socket. `protocol`: None when the connection is gone."""

    def __init__(self, transport: asyncio.Transport, protocol: PacedReader) -> None:
        self._transport = transport
        self.protocol: PacedReader | None = protocol
        self._paused = self._held = False
        self._reading = True
        self._lingers: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self._paused = True
        self._apply()

    def resume_reading(self) -> None:
        self._paused = False
        self._apply()
        if self.protocol is not None:
            self.protocol.stand_in_line()

    def hold(self, held: bool) -> None:
        """Do not read while bytes that were read wait for their turn."""
        self._held = held
        self._apply()

    def is_closing(self) -> bool:
        return self._lingers is not None or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection, after a while if the client still sends. A second call closes it at once."""
        if self.is_closing() or self.protocol is None or not self.protocol.client_sends():
            self._transport.close()
            return
        self._lingers = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.resume_reading()

    def _apply(self) -> None:
        reading = not (self._paused or self._held)
        if reading != self._reading and not self._transport.is_closing():
            self._reading = reading
            (self._transport.resume_reading if reading else self._transport.pause_reading)()
