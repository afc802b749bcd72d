"""A leader and a follower as processes of their own, and rounds of kill and promote under load.

python -m tests.support.standby ROUNDS [SECONDS]     prints a line a round; exit code 1 if a confirmed message is lost
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.support.running import ROOT, RunningBroker

REWINDMQ = [sys.executable, "-m", "rewindmq"]


class RunningFollower(RunningBroker):
    """A follower process that serves the copy."""

    program = ("-m", "rewindmq", "follow")

    def __init__(self, data: Path, leader: str, *options: str) -> None:
        self.leader = leader
        super().__init__(data, *options)

    def command(self, command: list[str]) -> list[str]:
        at = command.index("follow") + 1
        return [*command[:at], self.leader, *command[at:]]


def command(*words: str, url: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command of the program to its end."""
    where = [] if url is None else ["--url", url]
    return subprocess.run([*REWINDMQ, *words, *where], cwd=ROOT, capture_output=True, text=True, timeout=120)


def refused(data: Path, leader: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a follower that is refused, to its end."""
    return command("follow", leader, "--data", str(data), "--amqp-port", "1", "--http-port", "2", *options)


def standby_of(broker: RunningBroker) -> dict[str, Any]:
    """What a broker says of followers and of its leader."""
    found: dict[str, Any] = httpx.get(f"{broker.http_url}/api/overview", auth=("guest", "guest")).json()["standby"]
    return found


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"after {seconds} s it still does not hold"
        time.sleep(0.02)


def level(leader: RunningBroker) -> bool:
    """Whether each follower has all that its leader has synced."""
    found = standby_of(leader)["followers"]
    return bool(found) and all(each["connected"] and each["lag_records"] == 0 for each in found)


def segments_in(data: Path) -> dict[str, bytes]:
    """The segments of a log that have a block, by their path below DIR/log."""
    log = data / "log"
    return {str(path.relative_to(log)): path.read_bytes() for path in sorted(log.glob("*/[0-9]*.avro"))}


def digests_in(data: Path) -> dict[str, Any]:
    """The digest of the folded state of each partition, as `rewindmq verify` computes it."""
    done = command("verify", "--data", str(data), "--formatter", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
