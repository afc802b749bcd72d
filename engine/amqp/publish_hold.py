"""How an alarm holds back the publishes of a connection (read_gate.py `BLOCKED`).

    an alarm begins    connections that do not publish go on
    publish            the connection's next publish closes its gate, or the alarm does at once when a message of it has
                       come in part. The client is told (connection.blocked). What was read already waits, from the
                       content of that publish on
    the alarm ends     the client is told (connection.unblocked), and the gate opens

As in RabbitMQ a connection that only consumes is not held back, and one that does both is held back as a whole.
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
    connection.link.blocked = True
    if connection.capabilities.get("connection.blocked") is True:
        connection.blocked_sent = True
        connection.send("Connection.Blocked", reason=short_reply_text(reason))
    connection.gate.close(Pause.BLOCKED)


def alarm_changed(connection: "Connection") -> None:
    """The broker holds publishes back from now on, or takes them again."""
    if connection.session is None:  # it cannot publish
        return
    if connection.broker.turns.blocked is not None:
        forget_publishes(connection)
        under_way = any(channel.content_of is not None for channel in connection.channels.values())
        if under_way or connection.link.in_flow:  # its next publish is here already
            hold_publishes(connection)
        return
    if not connection.gate.blocked:
        return
    connection.link.blocked = False
    if connection.blocked_sent:
        connection.blocked_sent = False
        connection.send("Connection.Unblocked")
    connection.gate.open(Pause.BLOCKED)
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
