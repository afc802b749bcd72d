"""The reasons why a connection is not read from. This page has all of them.

    reason      the gate closes when ...                                  it opens when ...                     stops
    METHOD      a method or a publish awaits something: a password,       that is done                          frames
                the disk (tx.commit), room on it, a new key,
                another node, or that the client reads (basic.get)
    TURN        its frames have had their share of the loop's time, or    its next slice begins, by turns with  frames
                put many messages into queues                             all other long work (loop_share.py)
    FLOW        too many publishes are on their way into the log          room is there again, by turns, or     frames
                (engine/partition/flow_control.py)                          the connection is closed
    BLOCKED     the client publishes during an alarm (publish_hold.py)    the alarm ends, or the connection     both
                                                                          is closed
    UNDURABLE   it has sent its share, and too many bytes of all clients  a group commit has landed             socket
                together are not durable yet (server.py)
    UNREAD      the client does not read what it is sent (server.py)      it has read most of it                socket
    READ        a read was as large as a read can be (server.py)          the loop has come round once          socket

"frames": what was read stays unparsed, and the socket is paused as soon as more bytes come in. "socket": the operating
system holds back what the client sends; frames that were read already are parsed. Several reasons may hold at once.
METHOD, TURN and FLOW exclude each other: a connection that waits for one of them parses nothing that could bring
another.

A client that has closed (connection_state.py `LEFT`) is always read from: the server awaits its end of stream.
"""

from collections.abc import Callable
from enum import Flag, auto
from typing import Final


class Pause(Flag):
    """A reason why a connection is not read from."""

    METHOD = auto()
    TURN = auto()
    FLOW = auto()
    BLOCKED = auto()
    UNDURABLE = auto()
    UNREAD = auto()
    READ = auto()


NOTHING: Final = Pause(0)
WAITS: Final = Pause.METHOD | Pause.TURN | Pause.FLOW
STOPS_FRAMES: Final = WAITS | Pause.BLOCKED
STOPS_SOCKET: Final = Pause.BLOCKED | Pause.UNDURABLE | Pause.UNREAD | Pause.READ
# While one of these holds, a client need not send heartbeats. One that does not read (UNREAD) must.
EXCUSES_SILENCE: Final = STOPS_FRAMES | Pause.UNDURABLE


class ReadGate:
    """The gate of one connection, open while the server reads from it.

    `changed`: called after each change, to pause or resume the socket."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.reasons = NOTHING
        self.shut = False  # no further frame is parsed (asked after each publish: hot)
        self.waiting = False  # for METHOD, TURN or FLOW
        self.blocked = False  # an alarm holds the connection's publishes back
        self._changed = changed

    def close(self, reason: Pause) -> None:
        """Stop for this reason as well."""
        self._change(self.reasons | reason)

    def open(self, reason: Pause) -> None:
        """The reason is gone. Others may be left."""
        self._change(self.reasons & ~reason)

    def _change(self, reasons: Pause) -> None:
        self.reasons = reasons
        self.shut = bool(reasons & STOPS_FRAMES)
        self.waiting = bool(reasons & WAITS)
        self.blocked = bool(reasons & Pause.BLOCKED)
        self._changed()

    @property
    def excuses_silence(self) -> bool:
        """Nothing was read, so a missing heartbeat means nothing."""
        return bool(self.reasons & EXCUSES_SILENCE)

    def reads_socket(self, unparsed: bool) -> bool:
        """Return True if the socket is read. `unparsed`: bytes that were already read wait for the gate."""
        return not (self.reasons & STOPS_SOCKET or (self.waiting and unparsed))
