"""Sockets and clock for AMQP: asyncio on uvloop, protocols and no streams, one write per loop turn and connection.

    data_received      -> Connection.receive -> Turns.end      once per socket read, at once or by turns (loop_share.py)
    ClientSocket.wake  -> call_soon(flush)   -> confirms, credit, one transport.write

Pressure goes back to where it comes from.

- A client that does not read: its consumers get no credit while its socket holds more than WRITE_HIGH bytes, its
  basic.get waits so long, and it is not read from while the socket holds more than UNREAD_HIGH (read_gate.py `UNREAD`).
- Publishers faster than the disk: while more than UNDURABLE_HIGH received bytes are not durable, a client that has sent
  its share of them is not read from until a group commit has landed (`UNDURABLE`). A client that sends little goes on.
- Memory or disk is low: publishers are blocked and not read from (publish_hold.py). After a while the broker closes the
  connection that holds most memory.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.amqp.connection_state import ConnectionState
from rewindmq.engine.amqp.frames import HEARTBEAT_FRAME
from rewindmq.engine.amqp.read_gate import Pause
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import bracketed
from rewindmq.engine.errors import NotAllowed
from rewindmq.engine.host.admission import AdmittedConnection, ConnectionQuota, ListeningSocket, bound
from rewindmq.engine.host.memory import Kind
from rewindmq.engine.tls import LiveContext

log = logging.getLogger("rewindmq.amqp")

WRITE_HIGH = 1_048_576  # bytes in a socket's write buffer above which its consumers get no credit
WRITE_LOW = 262_144
UNREAD_HIGH = 16_777_216  # bytes that a client has not read above which nothing more is read from it
UNDURABLE_HIGH = 67_108_864  # bytes received from all clients and not durable yet above which reading pauses
UNDURABLE_STEP = 4_194_304  # bytes received before their durability is awaited
LEAST_SHARES = 64  # a client's share of UNDURABLE_HIGH is this part of it, or less where there are more clients
LEAST_RELIEF = 1_048_576  # bytes: connections that hold less are not closed when memory is low
LARGE_READ = 131_072  # bytes; a socket with as much is read once in a turn of the loop. (uvloop reads 256,000 at most)
HANDSHAKE_SECONDS = 10.0  # as RabbitMQ's handshake_timeout
CLOSING_SECONDS = 10.0  # how long close-ok is waited for
LEAVING_SECONDS = 30.0  # how long a client that was told close-ok may take to close its socket, as with RabbitMQ
STOPPING = "broker forced connection closure with reason 'shutdown'"  # RabbitMQ's words for a node that stops
TIMEOUT_CHECK_SECONDS = 30.0  # the longest time between two checks for consumer timeouts; RabbitMQ: a minute


class AmqpProtocol(asyncio.Protocol):
    """One client's socket, with its `Connection`. Implements `rewindmq.engine.amqp.connection.ClientSocket`."""

    def __init__(self, server: "AmqpServer", admitted: AdmittedConnection, listener: str) -> None:
        self.server = server
        self.listener = listener
        self.admitted = admitted
        self.broker = server.broker
        self.loop = server.loop
        self.transport: asyncio.Transport | None = None
        self.connection: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.wrote = False  # since the last heartbeat check
        self.reading = True
        self.unread = 0  # bytes in the write buffer, as the memory account knows them
        self.undurable = 0  # bytes received while those of all clients were many, in `undurable_round`
        self.undurable_round = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: the socket is there."""
        transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_LOW)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        balancer = transport.get_extra_info("peername") or ("unknown", 0)
        peer = self.admitted.client or balancer
        tls, tls_settings = transport.get_extra_info("ssl_object"), self.broker.config.tls
        connection = Connection(
            self.broker,
            f"{bracketed(str(peer[0]))}:{peer[1]}",
            not self.admitted.proxied and is_loopback(str(peer[0])),  # a balancer's loopback is its own machine's
            self,
            None if tls is None or tls_settings is None else tls_settings.peer(tls),
            self.listener,
            f"{bracketed(str(balancer[0]))}:{balancer[1]}" if self.admitted.proxied else "",
        )
        self.connection = connection
        self.server.protocols.add(self)
        self.admitted.wait(self.drop)
        self.set_timer(HANDSHAKE_SECONDS, self.handshake_timed_out)

    def data_received(self, data: bytes) -> None:
        """Asyncio: one read of the socket."""
        connection = self.connection
        assert connection is not None
        if len(data) >= LARGE_READ:  # libuv would read up to 32 times before others have their turn
            connection.gate.close(Pause.READ)
            self.loop.call_soon(connection.gate.open, Pause.READ)
        if connection.finished:
            return
        link = connection.link
        link.received_octets += len(data)
        link.received_count += 1
        connection.receive(data)
        self.broker.turns.end()
        connection.account.pay()
        self.server.received(self, len(data))

    def wake(self) -> None:
        """Schedule the write at the end of the loop's turn."""
        self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write everything that gathered in this turn of the loop."""
        connection, transport = self.connection, self.transport
        if connection is None or transport is None or transport.is_closing():
            return
        self.broker.host.loop_share.mark(connection)
        parts = connection.take_output()
        if parts:
            if parts[0] is not HEARTBEAT_FRAME:  # or every second heartbeat would be left out
                self.wrote = True
            if connection.output.has_large_body:
                connection.output.has_large_body = False
                connection.link.sent_octets += sum(map(len, parts))
                transport.writelines(parts)  # from where they are: it takes 10 ms to join 50 MB
            else:
                data = b"".join(parts)
                connection.link.sent_octets += len(data)
                transport.write(data)
            connection.link.sent_count += 1
            if connection.output.congested:
                unread = transport.get_write_buffer_size()
                self.count_unread(unread)
                change = connection.gate.close if unread > UNREAD_HIGH else connection.gate.open
                change(Pause.UNREAD)
        if connection.state is ConnectionState.LEFT:
            self.leave_to_client(connection)
        elif connection.finished:
            self.end()
        elif connection.state is ConnectionState.CLOSING:
            self.set_timer(CLOSING_SECONDS, self.drop)
        elif connection.grant_credit():
            self.broker.turns.end()

    def end(self) -> None:
        """Close the socket once everything is written. A client that does not read has `CLOSING_SECONDS` for it."""
        if self.transport is not None:
            self.transport.close()
            self.set_timer(CLOSING_SECONDS, self.drop)

    def leave_to_client(self, connection: Connection) -> None:
        """Wait for the client to close the socket, as RabbitMQ does. Close-ok is on its way. A client that meets the
        end of the stream before it has closed the socket itself takes that for a fault. Bytes that come are thrown
        away."""
        self.reading_changed()
        heartbeat = connection.handshake.heartbeat_seconds
        self.set_timer(min(heartbeat, LEAVING_SECONDS) if heartbeat else LEAVING_SECONDS, self.drop)

    def pause_writing(self) -> None:
        """Asyncio: more than WRITE_HIGH bytes are in the write buffer."""
        assert self.connection is not None
        self.connection.output.pause()

    def count_unread(self, size: int) -> None:
        """Tell the memory account how many bytes the client has not read. Counted while they are more than
        WRITE_HIGH."""
        self.broker.host.memory.change(Kind.OUTPUT, self.unread, size)
        self.unread = size

    def resume_writing(self) -> None:
        """Asyncio: less than WRITE_LOW bytes are in the write buffer."""
        assert self.connection is not None
        self.count_unread(0)
        self.connection.output.relieve()
        self.connection.gate.open(Pause.UNREAD)
        if self.connection.grant_credit():
            self.broker.turns.end()

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio: the socket is gone."""
        self.admitted.leave()
        self.server.protocols.discard(self)
        self.count_unread(0)
        if self.timer is not None:
            self.timer.cancel()
        if self.connection is not None:
            self.broker.host.loop_share.mark(self.connection)
            self.connection.lost()
            self.broker.turns.end()
        self.transport = None

    # -- reading or not -----------------------------------------------------------------------------------------------

    def reading_changed(self) -> None:
        """Pause or resume reading."""
        connection, transport = self.connection, self.transport
        if connection is None or transport is None or transport.is_closing():
            return
        reading = connection.reads_socket()
        if reading and not self.reading:
            transport.resume_reading()
        elif self.reading and not reading:
            transport.pause_reading()
        self.reading = reading

    # -- time ---------------------------------------------------------------------------------------------------------

    def set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        """Set the timer to call `callback` later. Its earlier callback is dropped."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, callback)

    def handshake_timed_out(self) -> None:
        """Drop a client that takes too long to open its vhost."""
        assert self.connection is not None
        log.warning("%s: handshake not done in %d s", self.connection.peer, HANDSHAKE_SECONDS)
        self.drop()

    def admit(self) -> None:
        """Count the client among those that have logged in. NotAllowed when there are too many, in RabbitMQ's words for
        its connection_max."""
        if not self.admitted.log_in():
            most = self.admitted.quota.most_logged_in
            raise NotAllowed(f"connection refused: node connection limit ({most}) is reached")

    def opened(self) -> None:
        """Begin to check heartbeats, if the client wants them: the handshake is done."""
        assert self.connection is not None
        if self.timer is not None:
            self.timer.cancel()
        if self.connection.handshake.heartbeat_seconds:
            self.set_timer(self.connection.handshake.heartbeat_seconds / 2, self.check_heartbeat)

    def check_heartbeat(self) -> None:
        """Drop a client that was silent for 2.5 heartbeat intervals or more. Called twice an interval."""
        connection = self.connection
        assert connection is not None
        if connection.state is not ConnectionState.RUNNING:
            return
        if connection.check_heartbeat(self.wrote):
            self.wrote = False
            self.set_timer(connection.handshake.heartbeat_seconds / 2, self.check_heartbeat)
        else:
            self.drop()

    @property
    def held_bytes(self) -> int:
        """Bytes that the broker keeps for this client, both ways."""
        return self.unread + (0 if self.connection is None else self.connection.kept_bytes)

    def drop(self) -> None:
        """Close the socket at once."""
        if self.transport is not None:
            self.transport.abort()


class AmqpServer:
    """The listening sockets and their connections, which come in by `quota`."""

    def __init__(self, broker: Broker, quota: ConnectionQuota) -> None:
        self.broker = broker
        self.quota = quota
        self.loop = asyncio.get_running_loop()
        self.protocols: set[AmqpProtocol] = set()
        self.listeners: list[tuple[str, int, LiveContext | None]] = []  # address and port, and TLS where it is used
        self.servers: list[ListeningSocket] = []  # none while the listeners are suspended
        self.undurable = 0  # bytes received from all clients that are not known to be durable
        self.awaited = 0  # bytes of these whose durability is awaited now
        self.undurable_round = 0  # how often awaited bytes have become durable
        self.held: list[Connection] = []  # not read from until they are durable
        self.timer: asyncio.TimerHandle | None = None

    @property
    def timeout_check_seconds(self) -> float:
        """The seconds between two checks of the ages of deliveries."""
        return min(TIMEOUT_CHECK_SECONDS, self.broker.config.consumer_timeout_ms / 2_000)

    def begin(self) -> None:
        """Begin to look after connections: the listeners are there."""
        self.broker.turns.on_blocked.append(self.alarm_changed)
        self.timer = self.loop.call_later(self.timeout_check_seconds, self.check_timeouts)

    async def listen(self, host: str, port: int, context: LiveContext | None) -> int:
        """Listen, with `context` over TLS, and return the port. `port` 0 takes a free one. OSError: the address is
        taken."""
        made = [
            ListeningSocket(
                sock,
                self.quota,
                partial(AmqpProtocol, self, listener=listener_of(sock)),
                context,
                HANDSHAKE_SECONDS,
                balancers=self.broker.config.amqp_balancers,
            )
            for sock in bound(host, port)
        ]
        self.servers += made
        self.listeners.append((host, made[0].port, context))
        return made[0].port

    # -- listeners ----------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Return True if the server takes new connections."""
        return bool(self.servers)

    def suspend(self) -> None:
        """Take no new connections. Open connections stay."""
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
                if protocol.connection.state is ConnectionState.LEFT:
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
        """Return all connections, in any state."""
        return [protocol.connection for protocol in self.protocols if protocol.connection is not None]

    def check_timeouts(self) -> None:
        """Time out deliveries that are unacked for too long, on all connections."""
        self.timer = self.loop.call_later(self.timeout_check_seconds, self.check_timeouts)
        for connection in self.connections():
            connection.check_timeouts(self.loop.time())
        self.broker.turns.end()

    def alarm_changed(self) -> None:
        """The broker holds publishes back from now on, or takes them again."""
        for connection in self.connections():
            connection.alarm_changed()

    def grant_credit(self) -> None:
        """Give more to consumers that have acked, though nothing was written to them. Called while memory is low."""
        for connection in self.connections():
            connection.grant_credit()
        self.broker.turns.end()

    def relieve(self) -> None:
        """Close the connection that holds most memory: messages that it sent in part, and output that it does not
        read."""
        most = max(self.protocols, key=lambda protocol: protocol.held_bytes, default=None)
        if most is None or most.connection is None or most.held_bytes < LEAST_RELIEF:
            return
        most.connection.close_for_memory()
        if most.unread:
            most.drop()  # it would not read the reason
        self.broker.turns.end()

    def received(self, protocol: AmqpProtocol, size: int) -> None:
        """Count the bytes that came in. Stop reading from their sender if too many are not durable yet, and it
        has sent more than its share of them."""
        self.undurable += size
        if self.undurable < UNDURABLE_STEP:
            return
        if not self.awaited:
            self.awaited = self.undurable
            self.broker.host.memory.take(Kind.UNDURABLE, self.awaited)
            self.broker.turns.when_durable(self.became_durable)
        if protocol.undurable_round != self.undurable_round:
            protocol.undurable_round, protocol.undurable = self.undurable_round, 0
        protocol.undurable += size
        connection = protocol.connection
        if self.undurable <= UNDURABLE_HIGH or connection is None or Pause.UNDURABLE in connection.gate.reasons:
            return
        if protocol.undurable <= UNDURABLE_HIGH // max(LEAST_SHARES, len(self.protocols)):
            return
        connection.gate.close(Pause.UNDURABLE)
        self.held.append(connection)

    def became_durable(self) -> None:
        """The awaited bytes are durable."""
        self.undurable -= self.awaited
        self.broker.host.memory.give_back(Kind.UNDURABLE, self.awaited)
        self.awaited = 0
        self.undurable_round += 1
        held, self.held = self.held, []
        for connection in held:
            connection.gate.open(Pause.UNDURABLE)


def listener_of(listening: socket.socket) -> str:
    """Host and port of a listening socket."""
    host, port, *_ = listening.getsockname()
    return f"{bracketed(host)}:{port}"


def is_loopback(address: str) -> bool:
    """Return True if the address is a loopback address, so that the client is on this machine."""
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return False
