"""Holds back the publishes of a connection: during an alarm, or while the disk has no room for a message.

An alarm (read_gate.py `BLOCKED`)

    an alarm begins    connections that do not publish go on
    publish            the connection's next publish closes its gate, or the alarm does at once when a message of it has
                       come in part. The client gets connection.blocked. What was read already waits, from the
                       content of that publish on
    the alarm ends     the client gets connection.unblocked, and the gate opens

As in RabbitMQ a connection that only consumes is not held back, and one that does both is held back as a whole.

No room (read_gate.py `METHOD`): a large publish or tx.commit waits until the log has room for it

    the wait begins    the client gets connection.blocked
    the wait ends      the client gets connection.unblocked

If both apply, the client gets connection.blocked once, with the first reason, and connection.unblocked after the last.
"""

from collections.abc import Callable

from rewindmq.engine.amqp.read_gate import Pause, ReadGate
from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.partition.sessions import ConnectionStatus


class PublishHold:
    """The hold on one connection's publishes. `tell` sends connection.blocked with the reason to a client that
    understands it, or connection.unblocked (None)."""

    def __init__(
        self, turns: Turns, gate: ReadGate, link: ConnectionStatus, tell: Callable[[str | None], None]
    ) -> None:
        self._turns = turns
        self._gate = gate
        self._link = link
        self._tell = tell
        self._told = False  # the client knows that it is blocked
        self.waits_for_room = False  # a publish or a commit does, on the disk

    def take(self) -> None:
        """Hold the connection back if an alarm is active. Called when a publish comes or is under way."""
        reason = self._turns.blocked
        if reason is not None and not self._gate.blocked:
            self._tell_blocked(reason)
            self._gate.close(Pause.BLOCKED)

    def alarm_over(self) -> bool:
        """Let the connection publish again. Returns True if an alarm has held it back."""
        if not self._gate.blocked:
            return False
        self._gate.open(Pause.BLOCKED)
        self._tell_unblocked()
        return True

    def wait_for_room(self, reason: str | None) -> None:
        """A message of the connection waits for room on the disk, for this reason. None: the wait has ended."""
        self.waits_for_room = reason is not None
        if reason is None:
            self._tell_unblocked()
        else:
            self._tell_blocked(reason)

    def release(self) -> None:
        """Hold nothing back: the connection closes, takes no more publishes, and has to read the close-ok."""
        self._link.blocked = self._link.in_flow = False
        self._gate.open(Pause.BLOCKED | Pause.FLOW)

    def _tell_blocked(self, reason: str) -> None:
        """Give the reason, unless another one was given already."""
        self._link.blocked = True
        if not self._told:
            self._told = True
            self._tell(reason)

    def _tell_unblocked(self) -> None:
        """Say that the connection is no longer held back, unless another reason holds."""
        if self._gate.blocked or self.waits_for_room:
            return
        self._link.blocked = False
        if self._told:
            self._told = False
            self._tell(None)
