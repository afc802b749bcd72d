"""Says why a port cannot be listened on: which process has it, and which option chooses another."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

OPTIONS = {
    "amqp": "--amqp-port",
    "amqp/ssl": "--tls-port",
    "http": "--http-port",
    "https": "--https-port",
    "http/prometheus": "--prometheus-port",
}
PROC = Path("/proc")
LISTENS = "0A"  # a state in /proc/net/tcp


def why_not_bound(protocol: str, address: str, port: int, error: OSError) -> str:
    """Return one line about a listener that could not be opened. `protocol`: as in Config.listeners."""
    reason = f"{protocol} {address}:{port}: {error.strerror or error}"
    if error.errno != errno.EADDRINUSE:
        return reason
    process = process_on(port)
    return f"{reason}, by {process or 'another process'}: stop it, or give {OPTIONS[protocol]} another number"


def process_on(port: int) -> str:
    """Return the name and the id of the process that listens on a TCP port.

    Empty if that is unknown: this user may not see the process, or the system has no /proc."""
    wanted = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in PROC.glob("[0-9]*"):
        try:
            if any(os.readlink(file) in wanted for file in process.glob("fd/*")):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:  # it has ended, or is another user's
            continue
    return ""


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a TCP port."""
    for name in ("tcp", "tcp6"):
        try:
            _, *rows = (PROC / "net" / name).read_text().splitlines()
        except (OSError, ValueError):
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
