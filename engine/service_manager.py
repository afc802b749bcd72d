"""Tells systemd, or another manager of services, how the broker is: the protocol of sd_notify(3).

A message is lines of NAME=VALUE in one datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing
happens. A message that cannot be sent is dropped: the broker does not depend on its manager.

    READY=1                          clients may come
    RELOADING=1, MONOTONIC_USEC=...  SIGHUP is being taken over; READY=1 follows
    STOPPING=1
    STATUS=...                       one line for `systemctl status`
    WATCHDOG=1                       the loop turns, twice in WATCHDOG_USEC
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping


class ServiceManager:
    """The manager of this service. `environment`: where it left its addresses."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._seconds = _watchdog_seconds(environment)
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """Clients may come, or a reload is over."""
        self._tell("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Tell what goes on."""
        self._tell(f"STATUS={status}")

    def reloading(self) -> None:
        """The configuration is read again. `ready` ends it."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")

    def stopping(self) -> None:
        """The broker stops."""
        if self._timer is not None:
            self._timer.cancel()
        self._tell("STOPPING=1", "STATUS=stopping")

    def begin_watchdog(self) -> None:
        """Tell from now on that the loop turns, if the manager asked for that."""
        if self._seconds:
            self._tell("WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(self._seconds / 2, self.begin_watchdog)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_manager:
                to_manager.setblocking(False)
                to_manager.sendto("\n".join(lines).encode(), self._address)
        except (OSError, ValueError):  # no such socket, a full one, or a path that can be none
            return


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """The time in which the manager wants to hear of this process; 0: it does not ask."""
    time_us, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not time_us.isdecimal() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(time_us) / 1_000_000
