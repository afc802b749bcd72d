"""Test runs that begin at the same time get ports of their own (tests/support/ports.py)."""

import signal
import socket
import subprocess
import sys

from tests.support.ports import BLOCKS, BLOCKS_MOST, SIZE, Reservation, free_port, free_ports
from tests.support.running import ROOT, start_process

TAKES = "import sys, tests.support.ports as p; print(*(p.free_port() for _ in range({})), flush=True); sys.stdin.read()"


def test_processes_share_no_port_until_they_end() -> None:
    processes: list[subprocess.Popen[str]] = []
    taken: list[set[int]] = [{free_port()}]
    for _ in range(3):
        processes.append(
            start_process(
                [sys.executable, "-c", TAKES.format(3 * SIZE)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for process in processes:
        assert process.stdout is not None
        taken.append({int(port) for port in process.stdout.readline().split()})
    assert [len(ports) for ports in taken] == [1, *[3 * SIZE] * 3]
    assert len(set.union(*taken)) == 1 + 3 * 3 * SIZE
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    block = min(taken[1]) - 1
    assert block in BLOCKS
    with socket.socket() as guard:  # free again
        guard.bind(("127.0.0.1", block))


def test_ports_follow_each_other_and_one_that_is_taken_is_left_out() -> None:
    ports = free_ports(12)
    assert list(ports) == list(range(ports[0], ports[0] + 12))
    assert set(ports).isdisjoint(free_ports(30))
    reservation = Reservation()
    (first,) = reservation.take(1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", first + 2))
        other.listen()
        assert reservation.take(1)[0] == first + 1
        assert reservation.take(1)[0] == first + 3


def test_a_process_that_has_used_its_ports_begins_again() -> None:
    reservation = Reservation()
    own = BLOCKS_MOST * (SIZE - 1)
    taken = [reservation.take(1)[0] for _ in range(2 * own)]
    assert own / 2 < len(set(taken)) <= own
