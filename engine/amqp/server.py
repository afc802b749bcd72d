"""Sockets and clock for AMQP: asyncio on uvloop, protocols and no streams, one write per loop turn and connection.

    data_received -> Connection.receive -> Turns.end        once per socket read
    Output.wake   -> call_soon(flush)   -> confirms, credit, one transport.write

Pressure goes back to where it comes from. A client that does not read: its consumers get no credit while its socket
holds more than WRITE_HIGH bytes, what it asks for with basic.get waits so long, and it is not read from while that is
more than UNREAD_HIGH. Publishers faster than the disk: above UNSETTLED_HIGH received bytes that are not yet durable,
whoever sends is not read until a group commit has landed. Memory or disk is low: publishers are told and not read
(amqp/publish_hold.py), and after a while the connection that holds most memory is closed.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable
from typing import cast

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.amqp.frames import HEARTBEAT_FRAME
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import bracketed
from rewindmq.engine.errors import NotAllowed
from rewindmq.engine.runtime.admission import Door, Guest, Listener, bound
from rewindmq.engine.runtime.memory import Kind

log = logging.getLogger("rewindmq.amqp")

WRITE_HIGH = 1_048_576  # bytes in a socket's write buffer above which its consumers get no credit
WRITE_LOW = 262_144
UNREAD_HIGH = 16_777_216  # bytes that a client has not read above which nothing more is read from it
UNSETTLED_HIGH = 67_108_864  # bytes received from all clients and not durable yet above which reading pauses
UNSETTLED_MARK = 4_194_304  # how often durability is asked for
LEAST_RELIEF = 1_048_576  # bytes: connections that hold less are not closed when memory is low
HANDSHAKE_SECONDS = 10.0  # as RabbitMQ's handshake_timeout
CLOSING_SECONDS = 10.0  # how long close-ok is waited for
LEAVING_SECONDS = 30.0  # how long a client that was told close-ok may take to close its socket, as with RabbitMQ
STOPPING = "broker forced connection closure with reason 'shutdown'"  # RabbitMQ's words for a node that stops
LOOK_SECONDS = 30.0  # how often overdue deliveries are looked for, at the least: RabbitMQ does so once a minute


class AmqpProtocol(asyncio.Protocol):
    """One client's socket around a sans-IO `Connection`."""

    def __init__(self, server: "AmqpServer", guest: Guest) -> None:
        self.server = server
        self.guest = guest
        self.broker = server.broker
        self.loop = server.loop
        self.transport: asyncio.Transport | None = None
        self.connection: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.wrote = False  # since the last look
        self.holding = False  # not read from while publishes wait for the disk
        self.reading = True
        self.unread = 0  # bytes in the write buffer, as the memory account knows them

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_LOW)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        tls, listener = transport.get_extra_info("ssl_object"), self.broker.config.tls
        connection = Connection(
            self.broker,
            f"{bracketed(str(peer[0]))}:{peer[1]}",
            is_loopback(str(peer[0])),
            None if tls is None or listener is None else listener.peer(tls),
        )
        connection.output.wake = self.wake
        connection.on_throttle = self.choose_reading
        connection.let_in = self.let_in
        connection.on_open = self.opened
        self.connection = connection
        self.server.protocols.add(self)
        self.set_timer(HANDSHAKE_SECONDS, self.handshake_late)

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        assert connection is not None
        if connection.finished:
            return
        link = connection.link
        link.received_octets += len(data)
        link.received_count += 1
        connection.receive(data)
        self.broker.turns.end()
        self.server.received(self, len(data))

    def wake(self) -> None:
        self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """End of the loop's turn: everything that gathered goes out in one write."""
        connection, transport = self.connection, self.transport
        if connection is None or transport is None or transport.is_closing():
            return
        parts = connection.take_output()
        if parts:
            if parts[0] is not HEARTBEAT_FRAME:  # or every second heartbeat would be left out
                self.wrote = True
            data = b"".join(parts)
            connection.link.sent_octets += len(data)
            connection.link.sent_count += 1
            transport.write(data)
            if connection.output.congested:
                self.count_unread(transport.get_write_buffer_size())
                self.choose_reading()
        if connection.left:
            self.leave_to_client(connection)
        elif connection.finished:
            self.end()
        elif connection.state == "closing":
            self.set_timer(CLOSING_SECONDS, self.drop)
        elif connection.grant_credit():
            self.broker.turns.end()

    def end(self) -> None:
        """Close the socket once everything is written. A client that does not read has `CLOSING_SECONDS` for it."""
        if self.transport is not None:
            self.transport.close()
            self.set_timer(CLOSING_SECONDS, self.drop)

    def leave_to_client(self, connection: Connection) -> None:
        """Close-ok is on its way. A client that meets the end of the stream before it has closed the socket itself
        takes that for a fault. So, as RabbitMQ does, the server waits for the client's end. What comes before that is
        thrown away."""
        self.choose_reading()
        heartbeat = connection.heartbeat_seconds
        self.set_timer(min(heartbeat, LEAVING_SECONDS) if heartbeat else LEAVING_SECONDS, self.drop)

    def pause_writing(self) -> None:
        assert self.connection is not None
        self.connection.output.congested = True

    def count_unread(self, size: int) -> None:
        """What the client has not read: counted while that is more than a little."""
        self.broker.memory.change(Kind.OUTPUT, self.unread, size)
        self.unread = size

    def resume_writing(self) -> None:
        assert self.connection is not None
        self.count_unread(0)
        self.connection.output.relieve()
        self.choose_reading()
        if self.connection.grant_credit():
            self.broker.turns.end()

    def connection_lost(self, error: Exception | None) -> None:
        self.guest.leave()
        self.server.protocols.discard(self)
        self.count_unread(0)
        if self.timer is not None:
            self.timer.cancel()
        if self.connection is not None:
            self.connection.lost()
            self.broker.turns.end()
        self.transport = None

    # -- reading or not -----------------------------------------------------------------------------------------------

    def hold(self, holding: bool) -> None:
        self.holding = holding
        self.choose_reading()

    def choose_reading(self) -> None:
        connection, transport = self.connection, self.transport
        if connection is None or transport is None or transport.is_closing():
            return
        if connection.left:
            if not self.reading:
                transport.resume_reading()
                self.reading = True
            return
        unread = connection.output.congested and transport.get_write_buffer_size() > UNREAD_HIGH
        reading = not (self.holding or connection.throttled or unread or (connection.waiting and connection.rest))
        if reading and not self.reading:
            transport.resume_reading()
        elif self.reading and not reading:
            transport.pause_reading()
        self.reading = reading

    # -- time ---------------------------------------------------------------------------------------------------------

    def set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, callback)

    def handshake_late(self) -> None:
        assert self.connection is not None
        log.warning("%s: handshake not done in %d s", self.connection.peer, HANDSHAKE_SECONDS)
        self.drop()

    def let_in(self) -> None:
        """The client wants to open its vhost. NotAllowed when too many have, in RabbitMQ's words for its
        connection_max."""
        if not self.guest.log_in():
            most = self.guest.door.most_logged_in
            raise NotAllowed(f"connection refused: node connection limit ({most}) is reached")

    def opened(self) -> None:
        """The handshake is done: from here on heartbeats are looked after, if the client wants them."""
        assert self.connection is not None
        if self.timer is not None:
            self.timer.cancel()
        if self.connection.heartbeat_seconds:
            self.set_timer(self.connection.heartbeat_seconds / 2, self.look)

    def look(self) -> None:
        connection = self.connection
        assert connection is not None
        if connection.state != "running":
            return
        if self.holding:
            connection.received = True  # it is we who do not read
        if connection.look(self.wrote):
            self.wrote = False
            self.set_timer(connection.heartbeat_seconds / 2, self.look)
        else:
            self.drop()

    @property
    def held_bytes(self) -> int:
        return self.unread + (0 if self.connection is None else self.connection.kept_bytes)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class AmqpServer:
    """The listening sockets and their connections, which come in by `door`."""

    def __init__(self, broker: Broker, door: Door) -> None:
        self.broker = broker
        self.door = door
        self.loop = asyncio.get_running_loop()
        self.protocols: set[AmqpProtocol] = set()
        self.listeners: list[tuple[str, int, ssl.SSLContext | None]] = []  # address and port, and TLS where it is used
        self.servers: list[Listener] = []  # none while the listeners are suspended
        self.unsettled = 0  # bytes received since the last durable mark
        self.marked = 0  # of these, what the mark under way covers
        self.held: list[AmqpProtocol] = []
        self.timer: asyncio.TimerHandle | None = None
        self.look_seconds = min(LOOK_SECONDS, broker.config.consumer_timeout_ms / 2_000)

    def begin(self) -> None:
        """The listeners are there: look after the connections that come."""
        self.broker.turns.on_blocked.append(self.blocked_changed)
        self.timer = self.loop.call_later(self.look_seconds, self.look_for_overdue)

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Listen, with `context` over TLS; `port` 0 takes a free one. The port. OSError when the address is taken."""
        made = [
            Listener(sock, self.door, lambda guest: AmqpProtocol(self, guest), context, HANDSHAKE_SECONDS)
            for sock in bound(host, port)
        ]
        self.servers += made
        self.listeners.append((host, made[0].port, context))
        return made[0].port

    # -- listeners ----------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """New connections are taken."""
        return bool(self.servers)

    def suspend(self) -> None:
        """Take no new connections. Those that are open go on."""
        for server in self.servers:
            server.close()
        self.servers = []

    async def resume(self) -> None:
        """Take new connections again. OSError when another program has taken an address meanwhile."""
        if not self.servers:
            listeners, self.listeners = self.listeners, []
            try:
                for listener in listeners:
                    await self.listen(*listener)
            except OSError:
                self.suspend()
                self.listeners = listeners
                raise

    async def close_connections(self, reason: str = STOPPING) -> None:
        """Close all connections with 320 CONNECTION_FORCED, wait for their close-ok for a moment, then drop them."""
        for protocol in list(self.protocols):
            if protocol.connection is not None:
                if protocol.connection.left:
                    protocol.end()
                protocol.connection.force_close(reason)
        self.broker.turns.end()
        for _ in range(20):
            if not self.protocols:
                break
            await asyncio.sleep(0.05)
        for protocol in list(self.protocols):
            protocol.drop()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        """Take no new connections, and close all that are open."""
        self.suspend()
        if self.timer is not None:
            self.timer.cancel()
        await self.close_connections()

    def connections(self) -> list[Connection]:
        return [protocol.connection for protocol in self.protocols if protocol.connection is not None]

    def look_for_overdue(self) -> None:
        self.timer = self.loop.call_later(self.look_seconds, self.look_for_overdue)
        for connection in self.connections():
            connection.look_for_overdue(self.loop.time())
        self.broker.turns.end()

    def blocked_changed(self) -> None:
        for connection in self.connections():
            connection.blocked_changed()

    def grant_credit(self) -> None:
        """While memory is low: consumers that have acked meanwhile get more, though nothing was written to them."""
        for connection in self.connections():
            connection.grant_credit()
        self.broker.turns.end()

    def relieve(self) -> None:
        """Close the connection that holds most memory: what it sent and did not end, and what it does not read."""
        most = max(self.protocols, key=lambda protocol: protocol.held_bytes, default=None)
        if most is None or most.connection is None or most.held_bytes < LEAST_RELIEF:
            return
        most.connection.close_for_memory()
        if most.unread:
            most.drop()  # it would not read the reason
        self.broker.turns.end()

    def received(self, protocol: AmqpProtocol, size: int) -> None:
        """Bytes came in: hold their sender back when too many are not durable yet."""
        self.unsettled += size
        if self.unsettled < UNSETTLED_MARK:
            return
        if not self.marked:
            self.marked = self.unsettled
            self.broker.memory.take(Kind.UNDURABLE, self.marked)
            self.broker.turns.when_durable(self.mark_durable)
        if self.unsettled > UNSETTLED_HIGH and not protocol.holding:
            protocol.hold(True)
            self.held.append(protocol)

    def mark_durable(self) -> None:
        self.unsettled -= self.marked
        self.broker.memory.give_back(Kind.UNDURABLE, self.marked)
        self.marked = 0
        held, self.held = self.held, []
        for protocol in held:
            protocol.hold(False)


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return False
