"""Says why a port cannot be listened on: which process has it, and which option chooses another."""

import errno
import os
from collections.abc import Iterator
from ipaddress import ip_address
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
    process = process_on(address.strip("[]"), port)
    return f"{reason}, by {process or 'another process'}: stop it, or give {OPTIONS[protocol]} another number"


def process_on(address: str, port: int) -> str:
    """Return the name and the id of the process that listens on a TCP port, there or on all addresses.

    Empty if that is unknown: this user may not see the process, or the system has no /proc."""
    wanted = {f"socket:[{inode}]" for inode in _listening(address, port)}
    for process in PROC.glob("[0-9]*"):
        try:
            if any(_target(file) in wanted for file in process.glob("fd/*")):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:  # it has just ended
            continue
    return ""


def _target(file: Path) -> str:
    try:
        return os.readlink(file)
    except OSError:  # it is closed by now, or another user's
        return ""


def _listening(address: str, port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a TCP port."""
    own = _in_proc(address)
    for name in ("tcp", "tcp6"):
        try:
            _, *rows = (PROC / "net" / name).read_text().splitlines()
        except (OSError, ValueError):
            continue
        for row in rows:
            fields = row.split()
            there, _, number = fields[1].partition(":")
            is_met = own is None or there == own or not int(there, 16) or not int(own, 16)
            if fields[3] == LISTENS and int(number, 16) == port and is_met:
                yield fields[9]


def _in_proc(address: str) -> str | None:
    """Return an address as /proc/net has it: words of four bytes, each with the last byte first. None for a name."""
    try:
        packed = ip_address(address or "0.0.0.0").packed
    except ValueError:
        return None
    return "".join(packed[start : start + 4][::-1].hex().upper() for start in range(0, len(packed), 4))
