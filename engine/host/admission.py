"""Doors limit the connections, so that clients cannot take the file descriptors of the store and of the log.

    RLIMIT_NOFILE = kept back for RocksDB, log and broker | AMQP | HTTP
                    share of a quota = connections that have logged in + connections that have not

- The store and the log come first, then AMQP, then HTTP: `shares` divides the descriptors that the system allows.
- Connections that have not logged in have their own limit, and each network has half of it (an IPv4 /24, an IPv6
  /64). At a limit a new connection displaces one: the oldest of the network that has most, or of its own network if no
  other has more. A connection whose password is under verification is not displaced. So a client that sends nothing, or
  half a request, leaves room for a client that sends its password at once.
- A quota counts a refused connection (`refused`) and logs it, at most one line every LOG_SECONDS.
- `ListeningSocket` accepts connections itself, so that a connection counts before its TLS handshake, not after it.
"""

import asyncio
import errno
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from rewindmq.engine.host.proxy_protocol import NOBODY, BadHeader, Balancers, Client, read_client
from rewindmq.engine.tls import LiveContext
from rewindmq.projections.store import rocks

logger = logging.getLogger("rewindmq.doors")

PARTITION_FILES: Final = 8  # a partition of the log: segment, index, lengths, and the files that readers have open
BROKER_FILES: Final = 64  # loop, pipes, listening sockets, lock, processes, files that are read for an answer
MOST_HTTP: Final = 1_000  # connections; there are few operators and tools
BACKLOG: Final = 1_024
ACCEPTS: Final = 16  # connections that one turn of the loop accepts, while the quota has room
PAUSE_SECONDS: Final = 1.0  # the listener's pause when no descriptor is free
LINGER_SECONDS: Final = 1.0  # a refused client has this long to read the reason
MOST_LINGERING: Final = 32
LOG_SECONDS: Final = 10.0

FULL: Final = "full"
UNKNOWN: Final = "not_logged_in"
NETWORK: Final = "network"
WHY: Final = {
    FULL: "there are {most} connections",
    UNKNOWN: "{unknown} connections have not logged in",
    NETWORK: "{of_network} connections of this network have not logged in",
}


class ConnectionQuota:
    """Counts the connections of one protocol. `share` is the most descriptors that they may have."""

    def __init__(self, protocol: str, share: int) -> None:
        self.protocol = protocol
        self.share = share
        self.most_logged_in = share - max(2, share // 16)  # the rest is for clients that are refused after their login
        self.most_unknown = max(2, share // 2)
        self.most_of_network = max(1, self.most_unknown // 2)
        self.logged_in = 0
        self.unknown = 0
        self.by_network: dict[str, int] = {}  # connections that have not logged in
        self.waiting: dict[
            str, dict[AdmittedConnection, None]
        ] = {}  # those of them that may be displaced, the oldest first
        self.refused = dict.fromkeys(WHY, 0)
        self._unlogged = 0
        self._logged_at = -LOG_SECONDS

    def enter(self, address: str) -> "AdmittedConnection | None":
        """Admit a connection from this address, and count it; None: the quota refuses it."""
        network = network_of(address)
        reason = ""
        if self.logged_in + self.unknown >= self.share:
            reason = FULL
        elif self.by_network.get(network, 0) >= self.most_of_network:
            reason = NETWORK
        elif self.unknown >= self.most_unknown:
            reason = UNKNOWN
        if reason and not self.displace(reason, network):
            self.refuse(reason, address)
            return None
        self.change_unknown(network, 1)
        return AdmittedConnection(self, address)

    def displace(self, reason: str, network: str) -> bool:
        """Drop a connection for a new one of this network. False: none may be dropped."""
        sizes = {each: len(waiting) for each, waiting in self.waiting.items()} if reason != NETWORK else {}
        largest = max(sizes, key=sizes.__getitem__, default=network)
        if sizes.get(largest, 0) > sizes.get(network, 0):
            network = largest
        admitted = next(iter(self.waiting.get(network, ())), None)
        if admitted is None:
            return False
        drop = admitted.drop
        self.refuse(reason, admitted.address)
        admitted.leave()
        drop()
        return True

    def change_unknown(self, network: str, by: int) -> None:
        """Count one more connection that has not logged in, or (`by` -1) one less."""
        self.unknown += by
        self.by_network[network] = self.by_network.get(network, 0) + by
        if not self.by_network[network]:
            del self.by_network[network]

    def set_waiting(self, admitted: "AdmittedConnection", waits: bool) -> None:
        """Note whether a connection may be displaced."""
        waiting = self.waiting.setdefault(admitted.network, {})
        if waits:
            waiting[admitted] = None
        else:
            waiting.pop(admitted, None)
        if not waiting:
            del self.waiting[admitted.network]

    def refuse(self, reason: str, address: str) -> None:
        """Count a refused connection, and log it if LOG_SECONDS have passed since the last line."""
        self.refused[reason] += 1
        self._unlogged += 1
        now = time.monotonic()
        if now - self._logged_at < LOG_SECONDS:
            return
        limits = {"most": self.share, "unknown": self.most_unknown, "of_network": self.most_of_network}
        logger.warning(
            "%s: refused %d connections since the last such line, the latest from %s: %s, which is the limit",
            self.protocol,
            self._unlogged,
            address,
            WHY[reason].format(**limits),
        )
        self._logged_at, self._unlogged = now, 0


class AdmittedConnection:
    """One connection that a quota admitted. `proxied`: a balancer speaks for `client`; None: it does not say."""

    __slots__ = ("address", "client", "drop", "known", "left", "network", "proxied", "quota")

    def __init__(self, quota: ConnectionQuota, address: str) -> None:
        self.quota = quota
        self.address = address
        self.network = network_of(address)
        self.known = False
        self.left = False
        self.proxied = False
        self.client: Client | None = None
        self.drop: Callable[[], object] = bool  # of no socket yet

    def wait(self, drop: Callable[[], object]) -> None:
        """Let the quota displace this connection, with `drop`, until it logs in."""
        self.drop = drop
        if not (self.known or self.left):
            self.quota.set_waiting(self, True)

    @contextmanager
    def presenting(self) -> Iterator[None]:
        """Keep the place of a connection whose password is under verification."""
        self.quota.set_waiting(self, False)
        try:
            yield
        finally:
            self.wait(self.drop)

    def speaks_for(self, client: Client | None) -> bool:
        """Note that the connection is a balancer's, and count it among those of the client's network.

        False: that network has too many that have not logged in."""
        self.proxied, self.client = True, client
        if client is None:
            return True
        quota = self.quota
        self._forget_unknown()
        self.address, self.network = client[0], network_of(client[0])
        full = quota.by_network.get(self.network, 0) >= quota.most_of_network
        fits = not full or quota.displace(NETWORK, self.network)
        quota.change_unknown(self.network, 1)
        self.wait(self.drop)
        if not fits:
            quota.refuse(NETWORK, client[0])
        return fits

    def log_in(self) -> bool:
        """Note that the connection has logged in.

        False: too many connections have logged in, and this one must be refused."""
        if self.known or self.left:
            return True
        if self.quota.logged_in >= self.quota.most_logged_in:
            self.quota.refuse(FULL, self.address)
            return False
        self._forget_unknown()
        self.known = True
        self.quota.logged_in += 1
        return True

    def leave(self) -> None:
        """Give the connection's descriptor back to the quota. A second call does nothing."""
        if self.left:
            return
        self.left = True
        self.drop = bool  # or it would be garbage in a circle
        if self.known:
            self.quota.logged_in -= 1
        else:
            self._forget_unknown()

    def _forget_unknown(self) -> None:
        self.quota.set_waiting(self, False)
        self.quota.change_unknown(self.network, -1)


def host_of(address: str) -> str:
    """Return the host that an address belongs to: the address itself, or the /64 of an IPv6 host."""
    try:
        found = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and not found.is_loopback:
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False).network_address)
    return str(found)


def network_of(address: str) -> str:
    """Return the network that an address shares places with: the first three numbers of IPv4, or an IPv6 /64."""
    host = host_of(address)
    return host.rpartition(".")[0] or host


def shares(descriptors: int, partitions: int) -> tuple[ConnectionQuota, ConnectionQuota]:
    """Make the quotas of AMQP and of HTTP.

    They share the descriptors that the store and the log leave, at least half of all."""
    kept = rocks.open_files(descriptors) + BROKER_FILES + PARTITION_FILES * (partitions + 1)
    rest = descriptors - min(kept, descriptors // 2)
    http = min(rest // 4, MOST_HTTP)
    return ConnectionQuota("amqp", rest - http), ConnectionQuota("http", http)


def bound(host: str, port: int) -> list[socket.socket]:
    """Open listening sockets, one for each address of the host name.

    OSError: an address cannot be bound."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            made.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
    except OSError:
        for sock in made:
            sock.close()
        raise
    return made


class ListeningSocket:
    """A listening socket that admits connections through a quota.

    `make` builds the protocol of a connection. The listener sends `answer` to a refused client that can read it.
    `balancers`: connections from there begin with a header of the PROXY protocol."""

    def __init__(
        self,
        listening: socket.socket,
        quota: ConnectionQuota,
        make: Callable[[AdmittedConnection], asyncio.Protocol],
        context: LiveContext | None = None,
        handshake_seconds: float = 10.0,
        answer: bytes = b"",
        balancers: Balancers = NOBODY,
    ) -> None:
        listening.setblocking(False)
        self.socket = listening
        self.quota = quota
        self._make = make
        self._context = context
        self._seconds = handshake_seconds
        self._balancers = balancers
        self._answer = b"" if context is not None else answer
        self._lingering: set[socket.socket] = set()
        self._welcoming: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._listen()

    @property
    def port(self) -> int:
        """The port that the socket listens on."""
        return int(self.socket.getsockname()[1])

    def close(self) -> None:
        """Accept no more connections. Open connections stay."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self.socket)
        self.socket.close()
        for sock in self._lingering:
            sock.close()
        for task in self._welcoming:
            task.cancel()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self.socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, address = self.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("%s: no connection can be accepted: %s", self.quota.protocol, error.strerror)
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    return
                self._loop.remove_reader(self.socket)  # else the loop calls again and again
                self._loop.call_later(PAUSE_SECONDS, self._listen)
                return
            sock.setblocking(False)
            refused = sum(self.quota.refused.values())
            admitted = self.quota.enter(str(address[0]))
            if admitted is None:
                self._turn_away(sock, str(address[0]))
            else:
                task = self._loop.create_task(self._welcome(sock, admitted, str(address[0])))
                self._welcoming.add(task)
                task.add_done_callback(self._welcoming.discard)
                admitted.wait(partial(send_away, task, sock))
            if sum(self.quota.refused.values()) > refused:
                return  # or a crowd would be displaced faster than it is read

    async def _welcome(self, sock: socket.socket, admitted: AdmittedConnection, address: str) -> None:
        """Make the connection's protocol.

        The protocol calls `admitted.leave` when the connection ends; without a protocol this method does."""
        seconds = None if self._context is None else self._seconds
        try:
            if address in self._balancers and not await self._read_header(sock, admitted):
                admitted.leave()
                sock.close()
                return
            await self._loop.connect_accepted_socket(
                lambda: self._make(admitted),
                sock,
                ssl=None if self._context is None else self._context.current,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except (OSError, TimeoutError) as error:  # the client left, or speaks no TLS (ssl.SSLError is an OSError)
            admitted.leave()
            sock.close()
            logger.debug("%s: %s: %s", self.quota.protocol, admitted.address, error)
        except BaseException:
            admitted.leave()
            sock.close()
            raise

    async def _read_header(self, sock: socket.socket, admitted: AdmittedConnection) -> bool:
        """Read the balancer's header. Return True if the client for whom it speaks may come in.

        Raises OSError, TimeoutError."""
        try:
            async with asyncio.timeout(self._seconds):
                return admitted.speaks_for(await read_client(self._loop, sock))
        except BadHeader as error:
            reason = str(error)
        except TimeoutError:
            reason = f"no header in {self._seconds:g} s"
        logger.warning("%s: PROXY protocol: %s is closed: %s", self.quota.protocol, admitted.address, reason)
        return False

    def _turn_away(self, sock: socket.socket, address: str) -> None:
        if not self._answer or address in self._balancers or len(self._lingering) >= MOST_LINGERING:
            sock.close()
            return
        try:
            sock.send(self._answer)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            return
        self._lingering.add(sock)
        self._loop.call_later(LINGER_SECONDS, self._let_go, sock)

    def _let_go(self, sock: socket.socket) -> None:
        self._lingering.discard(sock)
        sock.close()


def send_away(task: asyncio.Task[None], sock: socket.socket) -> None:
    """Close a connection that is not welcomed yet. (A task that never began would not close its socket.)"""
    task.cancel()
    sock.close()


class Listeners(Protocol):
    """The AMQP listeners, which an operator can close and open."""

    @property
    def open(self) -> bool: ...

    def suspend(self) -> None:
        """Take no new connections. Open connections stay."""

    async def resume(self) -> None:
        """Take new connections again. OSError: another program has taken an address meanwhile."""

    async def close_connections(self) -> None:
        """Close all open connections."""
