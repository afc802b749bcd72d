"""One connection with one channel, by pika.

pika reads and writes frames, logs in, beats and notices a peer that is gone. It would change messages, though: it
decodes properties and encodes them again, which makes 2 of the header 2.5, and a long of an int. So in the process of
a shovel pika hands properties on as bytes (`RawProperties`).
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from rewindmq.engine.config import VERSION
from rewindmq.engine.shovel.address import Address

HEARTBEAT_SECONDS = 30  # a peer that is silent for two of them is gone
OPEN_SECONDS = 15  # for a connection, up to its vhost
CLOSE_SECONDS = 5
# Replies that say that the login or its permissions do not suffice.
PERMISSION_CODES = (403, 530)
# pika has only the text of an error that came before the connection was open.
IN_LOGIN = (pika.exceptions.ProbableAuthenticationError, pika.exceptions.ProbableAccessDeniedError)
CLOSED_IN_LOGIN = re.compile(r"ConnectionClosedByBroker: \((\d+)\) (.*)", re.DOTALL)

log = logging.getLogger("rewindmq.shovel")


class RawProperties:
    """The properties of a message as they are in the content header. pika calls `decode` and `encode`."""

    INDEX = pika.spec.BasicProperties.INDEX
    NAME = pika.spec.BasicProperties.NAME

    def __init__(self, raw: bytes = b"\0\0") -> None:
        self.raw = raw

    def decode(self, encoded: bytes, offset: int = 0) -> "RawProperties":
        self.raw = encoded[offset:]
        return self

    def encode(self) -> list[bytes]:
        return [self.raw]


def keep_properties() -> None:
    """From now on pika hands the properties of messages on as bytes, in this process."""
    pika.spec.props[RawProperties.INDEX] = RawProperties
    # Each connection that ends is said in our own words.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


class Ended(Exception):
    """A link has ended. `side`: source or destination. `code`: the broker's reply code, if it gave one."""

    def __init__(self, side: str, code: int | None, text: str) -> None:
        super().__init__(f"the {side} {text}")
        self.side = side
        self.code = code

    @property
    def is_permission(self) -> bool:
        """The login, or a permission of the user, is not what the broker asks for."""
        return self.code in PERMISSION_CODES


class Link:
    """`side`: source or destination. `ended`: done when the connection or its channel is closed."""

    def __init__(self, side: str) -> None:
        self.side = side
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.channel: Any = None
        self._connection: Any = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, address: Address, name: str) -> None:
        """Connect, and open the channel. `name`: of the connection, in listings. Ended."""
        await self.answer(lambda opened: self._connect(address, name, opened))
        self._connection.add_on_connection_blocked_callback(self._blocked)
        self._connection.add_on_connection_unblocked_callback(self._unblocked)
        self.channel = await self.answer(lambda opened: self._connection.channel(on_open_callback=opened))
        self.channel.add_on_close_callback(lambda _, error: self._end(error))

    async def answer(self, ask: Callable[[Callable[[Any], None]], object]) -> Any:
        """Ask the broker, and wait for its answer. `ask`: gets the callback for it. Ended, if the link ends first."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            ask(lambda found: None if answered.done() else answered.set_result(found))
        except pika.exceptions.AMQPError as error:
            self._end(error)
        await asyncio.wait((answered, self.ended), return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            return answered.result()
        raise self.ended.result()

    async def close(self) -> None:
        """Close the connection, and wait until it is closed, a few seconds at most."""
        if self._connection is None:
            return
        if not self._connection.is_closed and not self._connection.is_closing:
            self._connection.close()
        await asyncio.wait((self._gone,), timeout=CLOSE_SECONDS)

    def _connect(self, address: Address, name: str, opened: Callable[[Any], None]) -> None:
        tls = None
        if address.scheme == "amqps":
            tls = pika.SSLOptions(ssl.create_default_context(cafile=address.ca), address.host)
        parameters = pika.ConnectionParameters(
            address.host,
            address.port,
            address.vhost,
            pika.PlainCredentials(address.user, address.password),
            heartbeat=HEARTBEAT_SECONDS,
            socket_timeout=OPEN_SECONDS,
            stack_timeout=OPEN_SECONDS,
            ssl_options=tls,
            client_properties={"connection_name": name, "product": "rewindmq shovel", "version": VERSION},
        )
        self._connection = AsyncioConnection(parameters, opened, self._closed, self._closed, asyncio.get_running_loop())

    def _closed(self, _: object, error: BaseException) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        self._end(error)

    def _end(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_result(Ended(self.side, *reason(error)))

    def _blocked(self, _: object, method: Any) -> None:
        log.warning("the %s takes no messages now: %s", self.side, method.method.reason)

    def _unblocked(self, _: object, __: object) -> None:
        log.info("the %s takes messages again", self.side)


def reason(error: BaseException) -> tuple[int | None, str]:
    """Return the broker's reply code, if it gave one, and why a connection or a channel ended, as `the source ...`."""
    last = error
    for each in _causes(error):
        if isinstance(each, pika.exceptions.ConnectionClosed | pika.exceptions.ChannelClosed):
            return each.reply_code, f"says: {each.reply_text}"
        if isinstance(each, IN_LOGIN):
            closed = CLOSED_IN_LOGIN.search(str(each.args[0]))
            if closed is None:
                return None, "closed the connection during the login"
            return int(closed[1]), f"says: {closed[2].strip(chr(39) + chr(34))}"
        last = each
    if isinstance(last, pika.exceptions.AMQPHeartbeatTimeout):
        return None, "was silent for too long"
    if isinstance(last, OSError):
        return None, f"cannot be reached: {last.strerror or last}"
    return None, f"is gone: {last!r}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of pika with those that it wraps, the outermost first."""
    yield error
    inner = getattr(error, "exception", None)
    wrapped = [inner, *getattr(error, "exceptions", ())[-1:], *error.args]
    for each in wrapped:
        if isinstance(each, BaseException):
            yield from _causes(each)
