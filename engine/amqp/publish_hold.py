"""Holds back the publishes of a connection: during an alarm, or while the disk has no room for a message.

An alarm (read_gate.py `BLOCKED`)

    an alarm begins    connections that do not publish go on
    publish            the connection's next publish closes its gate, or the alarm does at once when a message of it has
                       come in part. The client is told (connection.blocked). What was read already waits, from the
                       content of that publish on
    the alarm ends     the client is told (connection.unblocked), and the gate opens

As in RabbitMQ a connection that only consumes is not held back, and one that does both is held back as a whole.

No room (read_gate.py `METHOD`): a large publish or tx.commit waits until the log has room for it

    the wait begins    the client is told (connection.blocked)
    the wait ends      the client is told (connection.unblocked)

If both apply, the client is told once: with the reason of the first one, and that it is over after the last one.
"""

from typing import TYPE_CHECKING

from rewindmq.engine.amqp.methods import short_reply_text
from rewindmq.engine.amqp.read_gate import Pause
from rewindmq.engine.errors import ResourceError

if TYPE_CHECKING:
    from rewindmq.engine.amqp.connection import Connection


def hold_publishes(connection: "Connection") -> None:
    """Hold the connection back if an alarm is in effect. Called when a publish comes or is under way."""
    reason = connection.broker.turns.blocked
    if reason is None or connection.gate.blocked:
        return
    tell_blocked(connection, reason)
    connection.gate.close(Pause.BLOCKED)


def tell_blocked(connection: "Connection", reason: str) -> None:
    """Say why the connection is held back, unless another reason was said already."""
    connection.link.blocked = True
    if not connection.blocked_sent and connection.capabilities.get("connection.blocked") is True:
        connection.blocked_sent = True
        connection.send("Connection.Blocked", reason=short_reply_text(reason))


def tell_unblocked(connection: "Connection") -> None:
    """Say that the connection is held back no more, unless another reason holds."""
    if connection.gate.blocked or connection.waits_for_room:
        return
    connection.link.blocked = False
    if connection.blocked_sent:
        connection.blocked_sent = False
        connection.send("Connection.Unblocked")


def wait_for_room(connection: "Connection", reason: str | None) -> None:
    """A message of the connection waits for room on the disk, for this reason. None: the wait has ended."""
    if connection.session is None:  # it closes, and was released
        return
    connection.waits_for_room = reason is not None
    if reason is None:
        tell_unblocked(connection)
    else:
        tell_blocked(connection, reason)


def alarm_changed(connection: "Connection") -> None:
    """The broker holds publishes back from now on, or takes them again."""
    if connection.session is None:  # it cannot publish
        return
    if connection.broker.turns.blocked is not None:
        forget_publishes(connection)
        under_way = any(channel.content_of is not None for channel in connection.channels.values())
        if under_way or connection.link.in_flow or connection.waits_for_room:  # its next publish is here already
            hold_publishes(connection)
        return
    if not connection.gate.blocked:
        return
    connection.gate.open(Pause.BLOCKED)
    tell_unblocked(connection)
    if connection.parser.rest:
        connection.yield_turn()


def release(connection: "Connection") -> None:
    """The connection closes and takes no more publishes: its close-ok is to be read."""
    connection.link.blocked = connection.link.in_flow = False
    connection.gate.open(Pause.BLOCKED | Pause.FLOW)


def forget_publishes(connection: "Connection") -> None:
    """Empty all memos of publishes: the next one comes by `hold_publishes`. They may hold a mebibyte a channel."""
    for channel in connection.channels.values():
        channel.publish_memo.clear()
        channel.parsed.clear()
    connection.parser.repeat = None


def kept_bytes(connection: "Connection") -> int:
    """Bytes of the connection's publishes that have not come whole, or are not committed."""
    return sum(channel.kept_bytes for channel in connection.channels.values())


def close_for_memory(connection: "Connection") -> None:
    """Close the connection with 506: it holds more than others, and the memory alarm does not end."""
    kept = kept_bytes(connection)
    connection.close(
        ResourceError(
            f"low on memory: {kept} bytes of messages that had not come whole, or were not committed, were dropped"
            if kept
            else "low on memory: the client does not read what was sent to it"
        )
    )
