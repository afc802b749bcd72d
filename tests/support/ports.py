"""Free ports on loopback. Several test runs on one machine never get the same one.

    free_port()       a port that nothing listens on
    free_ports(4)     four of them that follow each other

Rules of this file
- A process takes a block of ports, and holds the first port of the block for as long as it lives: it is bound, and
  nothing listens there. So no other process takes the block, and the block is free again when the process has ended, in
  any way. When a block is used up the process takes another one, up to `BLOCKS_MOST`, and then uses its own ones again.
- Blocks are below the ports that the system gives to clients, so that no outgoing connection takes a port meanwhile.
  The usual ports of a broker and of `make stack` are in no block.
- It needs the standard library only: tests/acceptance/broker_for_docker.py loads it by its path.
"""

import os
import random
import socket
import threading

SIZE = 50  # ports of a block
BLOCKS = range(16_000, 29_000, SIZE)
BLOCKS_MOST = 20  # of one process


class Reservation:
    """The blocks of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._guards: list[socket.socket] = []
        self._next = 0  # the block that comes after the current one
        self._left = range(0)  # of the current block

    def take(self, count: int) -> range:
        """Take this many free ports that follow each other. AssertionError: there are none."""
        assert 0 < count < SIZE
        for _ in range(2 * BLOCKS_MOST * SIZE):
            if len(self._left) < count:
                self._left = self._next_block()
            ports, self._left = self._left[:count], self._left[count:]
            if all(map(_is_free, ports)):
                return ports
        raise AssertionError("no free port")

    def _next_block(self) -> range:
        if self._next == len(self._guards) < BLOCKS_MOST:
            self._reserve()
        assert self._guards, "other processes have all blocks of ports"
        guard = self._guards[self._next % len(self._guards)]
        self._next = self._next % len(self._guards) + 1
        first = int(guard.getsockname()[1])
        return range(first + 1, first + SIZE)

    def _reserve(self) -> None:
        """Reserve another block, if there is one."""
        for first in random.Random().sample(BLOCKS, len(BLOCKS)):
            guard = socket.socket()
            try:
                guard.bind(("127.0.0.1", first))
            except OSError:
                guard.close()
            else:
                self._guards.append(guard)
                return


_lock = threading.Lock()
_reservation = Reservation()


def free_port() -> int:
    """Return a port on loopback that nothing listens on. No other test run takes it."""
    return free_ports(1)[0]


def free_ports(count: int) -> range:
    """Return ports as `free_port`, that follow each other."""
    global _reservation
    with _lock:
        if _reservation.pid != os.getpid():  # a fork has its parent's blocks
            _reservation = Reservation()
        return _reservation.take(count)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
