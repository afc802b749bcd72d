"""A connection whose publishes are held back: while an alarm is in effect, or the log or the state cannot be written.

    blocking    an alarm is in effect, and the client has not published since
    blocked     it published, or a message of it has come in part: it was told, and is not read from any more. What
                has been read already waits, from the content of that publish on.

As in RabbitMQ a connection that only consumes is not held back, and one that does both is held back as a whole.
"""

from abc import abstractmethod
from collections.abc import Callable

from rewindmq.engine.amqp.frames import FrameReader
from rewindmq.engine.amqp.methods import short_reply_text
from rewindmq.engine.amqp.output import do_nothing
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import AmqpError, ResourceError
from rewindmq.engine.runtime.sessions import Link
from rewindmq.engine.tls import TlsPeer


class HeldBack(FrameReader):
    """`Connection` extends it."""

    def __init__(self, broker: Broker, tls: TlsPeer | None) -> None:
        super().__init__()
        self.broker = broker
        self.link = Link(tls)
        self.capabilities: dict[str, object] = {}
        self.told_blocked = False
        self.on_throttle: Callable[[], None] = do_nothing  # `throttled` changed

    @abstractmethod
    def say(self, name: str, **values: int | bool | str | bytes) -> None:
        """A method of channel 0 to the client."""

    @abstractmethod
    def close(self, error: AmqpError, index: int = 0) -> None:
        """Close from this side, with the reason."""

    def throttle(self) -> None:
        """A publish came, or is under way. While the broker holds publishing back the client is told once, and not
        read from."""
        if self.broker.turns.blocked is None or self.throttled:
            return
        self.throttled = self.link.blocked = True
        if self.capabilities.get("connection.blocked") is True:
            self.told_blocked = True
            self.say("Connection.Blocked", reason=short_reply_text(self.broker.turns.blocked))
        self.on_throttle()

    def blocked_changed(self) -> None:
        """The broker holds publishing back, or takes publishes again."""
        if self.broker.turns.blocked is not None:
            for channel in self.channels.values():
                channel.publishings.clear()
                channel.parsed.clear()  # a mebibyte a channel, if a client means it
            self.repeat = None  # with both gone, the next publish passes by `throttle`
            under_way = any(channel.publishing is not None for channel in self.channels.values())
            if under_way or self.link.in_flow:  # its next publish is here already
                self.throttle()
            return
        if not self.throttled:
            return
        self.throttled = self.link.blocked = False
        if self.told_blocked:
            self.told_blocked = False
            self.say("Connection.Unblocked")
        self.on_throttle()
        if self.rest:
            self.give_way()

    @property
    def kept_bytes(self) -> int:
        """Of its publishes that have not come whole, or are not committed."""
        return sum(channel.kept_bytes for channel in self.channels.values())

    def close_for_memory(self) -> None:
        """506, once it holds more than others, and the memory alarm does not end."""
        kept = self.kept_bytes
        self.close(
            ResourceError(
                f"low on memory: {kept} bytes of messages that had not come whole, or were not committed, were dropped"
                if kept
                else "low on memory: the client does not read what was sent to it"
            )
        )
        if self.throttled:  # close-ok is to be read
            self.throttled = self.link.blocked = False
            self.on_throttle()
