"""The states of an AMQP connection.

    HEADER -> STARTING -> TUNING -> OPENING -> RUNNING -> CLOSING -> CLOSED
      AMQP0091  start-ok    tune-ok   open        |       close-ok
                                                  +-----> LEFT
                                                  close

    HEADER      the eight bytes of the protocol header are expected
    STARTING    connection.start is sent; start-ok is expected
    TUNING      the login is accepted and connection.tune is sent; tune-ok is expected
    OPENING     connection.open is expected
    RUNNING     the vhost is open, and the connection has a session in the broker
    CLOSING     connection.close is sent: everything but close and close-ok is ignored
    LEFT        the client has closed and close-ok is sent: the client closes the socket
    CLOSED      nothing more is sent: the server closes the socket once the output is written

Every state may go to CLOSING by an error, to LEFT by the client's connection.close, and to CLOSED when the socket is
lost. In LEFT and CLOSED, and after an error that loses the place in the stream, bytes that come are thrown away
(frames.py `FrameParser.deaf`). Why a connection is not read from meanwhile is another page: read_gate.py.
"""

from enum import Enum
from typing import Final


class ConnectionState(Enum):
    """A state of a connection. The values appear in error texts."""

    HEADER = "header"
    STARTING = "starting"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    LEFT = "left"
    CLOSED = "closed"


FINISHED: Final = (ConnectionState.LEFT, ConnectionState.CLOSED)  # nothing more is sent
ENDING: Final = (ConnectionState.CLOSING, *FINISHED)
