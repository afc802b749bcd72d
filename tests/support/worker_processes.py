"""A broker in several processes. Its workers pause a partition a second after its last use, and claim digests often.
A partition that goes on begins with the state of another worker where that saves some hundred events.

Checks of what its log says when it has ended: `agreed_claims`.
"""

import os
import re
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.processes.worker import WORKER
from rewindmq.projections.replay import beginning, fold
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Checkpointed
from tests.support.kafka.pausing_nodes import begin
from tests.support.ports import free_port, free_ports
from tests.support.running import RunningBroker

SNAPSHOT_EVENTS = 500


class WorkerProcesses(RunningBroker):
    """A broker of `count` workers, each with an HTTP port of its own."""

    program = ("-m", "tests.support.worker_processes")

    def __init__(self, data: Path, *options: str, count: int = 2) -> None:
        self.count = count
        self.http_ports = free_ports(count)
        super().__init__(
            data, "--processes", str(count), "--node-timeout", "5", *options, ports=(free_port(), self.http_ports[0])
        )

    def pids(self) -> dict[int, int]:
        """The processes of workers, by number, that run now."""
        found = {}
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in map(int, path.read_text().split()):
            with suppress(OSError):  # it has just ended
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                own = [each for each in variables if each.startswith(WORKER.encode() + b"=")]
                if own:
                    found[int(own[0].partition(b"=")[2].split()[0])] = pid
        return found

    def kill_worker(self, number: int) -> None:
        """End a worker as the system does when memory is short."""
        os.kill(self.pids()[number], signal.SIGKILL)

    def until_ended(self, pids: dict[int, int], seconds: float = 30) -> None:
        """Wait until these processes are gone."""
        deadline = time.monotonic() + seconds
        while left := [pid for pid in pids.values() if _runs(pid)]:
            assert time.monotonic() < deadline, f"{left} still run: {''.join(self.errors[-30:])}"
            time.sleep(0.05)

    def until_said(self, what: str, times: int = 1, seconds: float = 30) -> None:
        """Wait until so many lines of the log have this text."""
        deadline = time.monotonic() + seconds
        while sum(what in line for line in self.errors) < times:
            assert time.monotonic() < deadline, f"nothing says {what!r}: {''.join(self.errors[-30:])}"
            time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def agreed_claims(data: Path) -> int:
    """Fold each partition of a log plainly, and compare with every claim in it. Returns how many claims were compared.

    What the fold skipped must be what a lost worker sent too late; and no publish, which counts."""
    compared = 0
    for partition in EmbeddedLogReader(data).queues:
        claims: dict[int, set[str]] = {}
        decode = Decoder().decode
        for block in partition.read():
            for record in block.records:
                event = decode(record)[2]
                if isinstance(event, Checkpointed):
                    claims.setdefault(event.offset, set()).add(event.digest)
        machine = beginning(partition)
        report = None
        for offset in sorted(claims):
            report = fold(machine, partition, offset + 1)
            assert claims[offset] == {machine.digest()}, f"{partition.name} at {offset}"
            compared += 1
        report = fold(machine, partition)
        machine.validate()
        kinds = Counter(f"{each.event_type}, {re.sub('[0-9]+', 'N', each.reason)}" for each in report.newest())
        assert not [kind for kind in kinds if kind.startswith("Published")], kinds
    return compared


if __name__ == "__main__":
    import sys

    begin(sys.argv[1:], SNAPSHOT_EVENTS)
