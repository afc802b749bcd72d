"""Measure the cost of a second machine.

    python -m tests.bench.bench_standby [--rounds 3] [--messages 50000]

PerfTest publishes through one queue, with confirms (`--outstanding` of them) and acks. Each kind has a fresh leader:

    alone       no follower
    sync        a follower copies; confirms do not wait for it
    follower    --confirm-after follower: confirms wait for it

Both machines are processes on this one, so they share its cores and its disk. The kinds run in turn, in a different
order each round. Figures are medians: messages a second, and CPU-microseconds a message of the leader and of the
follower.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx2

from tests.bench.peers import Broker, started
from tests.bench.perftest import perftest
from tests.support.ports import free_port

KINDS: dict[str, tuple[str, ...] | None] = {"alone": None, "sync": (), "follower": ("--confirm-after", "follower")}
LEVEL_SECONDS = 120.0


def machine(home: Path, words: list[str], options: tuple[str, ...] = ()) -> Broker:
    """A process of a leader or of a follower."""
    home.mkdir()
    port, http_port = free_port(), free_port()
    command = [sys.executable, "-m", "rewindmq", *words, "--data", str(home / "data"), *options]
    command += ["--amqp-port", str(port), "--http-port", str(http_port)]
    return started("RewindMQ", command, port, home, http_port, dict(os.environ))


def level(leader: Broker) -> None:
    """Wait until the follower has all that is synced."""
    end = time.monotonic() + LEVEL_SECONDS
    url = f"http://127.0.0.1:{leader.http_port}/api/followers"
    while not all(each["lag_records"] == 0 for each in httpx2.get(url, auth=("guest", "guest")).json()):
        if time.monotonic() > end:
            raise RuntimeError(f"the follower is not level after {LEVEL_SECONDS:g} s")
        time.sleep(0.1)


def run(home: Path, kind: str, messages: int, outstanding: int) -> tuple[float, float, float]:
    """Messages a second; CPU-microseconds a message of the leader and of the follower."""
    home.mkdir()
    leader = machine(home / "leader", ["start"], KINDS[kind] or ())
    follower: Broker | None = None
    try:
        if KINDS[kind] is not None:
            follower = machine(home / "copy", ["follow", f"http://127.0.0.1:{leader.http_port}"])
            level(leader)
        before = 0.0 if follower is None else follower.cpu_seconds()
        counts = ["-C", str(messages), "-D", str(messages)]
        result = perftest(leader, ["-c", str(outstanding), "-q", "200", *counts])
        theirs = 0.0
        if follower is not None:
            level(leader)
            theirs = follower.cpu_seconds() - before
        return result.per_second, result.cpu_seconds / messages * 1e6, theirs / messages * 1e6
    finally:
        if follower is not None:
            follower.stop()
        leader.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--outstanding", type=int, default=500)
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as home:
        for number in range(asked.rounds):
            names = list(KINDS)
            for kind in names[number % len(names) :] + names[: number % len(names)]:
                found[kind].append(run(Path(home) / f"{number}-{kind}", kind, asked.messages, asked.outstanding))
                rate, leader, follower = found[kind][-1]
                print(
                    f"{number} {kind:<9} {rate:8.0f} /s, leader {leader:6.1f} us, follower {follower:6.1f} us",
                    flush=True,
                )
    base = [median(column) for column in zip(*found["alone"], strict=True)]
    for kind, rows in found.items():
        rate, leader, follower = (median(column) for column in zip(*rows, strict=True))
        print(
            f"{kind:<9} {rate:8.0f} /s ({rate / base[0]:.2f}), leader {leader:6.1f} us ({leader / base[1]:.2f}),"
            f" follower {follower:6.1f} us ({follower / base[1]:.2f})"
        )


if __name__ == "__main__":
    main()
