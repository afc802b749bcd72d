"""A log withstands other processes, a full disk and kill -9."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.verify import verify_chain
from tests.support.needs import needed, require
from tests.support.records import contents, record, reopened
from tests.support.running import ROOT


def test_two_brokers_cannot_open_one_directory(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path, 1)
    with pytest.raises(LogError, match=rf"in use by another broker \(process {os.getpid()}, lock {tmp_path}/lock\)"):
        EmbeddedLog.open(tmp_path, 1)
    other = "from pathlib import Path; from rewindmq.engine.log.embedded.log import EmbeddedLog; import sys\n"
    other += "EmbeddedLog.open(Path(sys.argv[1]), 1)"
    run = subprocess.run([sys.executable, "-c", other, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert f"in use by another broker (process {os.getpid()}" in run.stderr
    EmbeddedLogReader(tmp_path)  # reading is free
    log.close()
    EmbeddedLog.open(tmp_path, 1).close()


@pytest.mark.parametrize("how", ["tmpfs", "limit"])
def test_a_full_disk_loses_nothing(tmp_path: Path, how: str) -> None:
    """A real one: writes really fail, half blocks really stand there, and it goes on when there is room again."""
    data = tmp_path / "disk"
    data.mkdir()
    command = [sys.executable, "-m", "tests.support.disk_filler", str(data), how]
    if how == "tmpfs":  # in a namespace of its own, so that nothing stays mounted; the log is copied out of it
        script = 'mount -t tmpfs -o size=1m tmpfs "$0" && "$@" && cp -r "$0/log" "$0.copy"'
        command = [needed("unshare"), "--user", "--map-root-user", "--mount", "sh", "-c", script, str(data), *command]
        probe = [needed("unshare"), "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(data)]
        mountable = subprocess.run(probe, capture_output=True, check=False).returncode == 0
        require(mountable, "no file system may be mounted here; the limit on file sizes is tested instead")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    if how == "tmpfs":
        (tmp_path / "found").mkdir()
        shutil.move(f"{data}.copy", tmp_path / "found" / "log")
        data = tmp_path / "found"
    told = json.loads(run.stdout)
    assert told["failures"] >= 3
    assert ("No space left on device" if how == "tmpfs" else "File too large") in told["text"]
    assert "queues-0: " in told["text"]
    assert "records from offset" in told["text"]
    found = reopened(data)
    assert found == [record(number, body_bytes=100) for number in range(told["records"])]
    assert sum(segment.records for segment in verify_chain(data / "log" / "queues-0")) == told["records"]


def killed(data: Path, segment_bytes: int, patience: Callable[[], float]) -> list[int]:
    """Let a process append to `data`, kill it after a while; the offsets up to which it had confirmed."""
    command = [sys.executable, "-m", "tests.support.appender", str(data), str(segment_bytes)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(patience())
    finally:
        process.send_signal(signal.SIGKILL)
        output = process.stdout.read()
        process.stdout.close()
        assert process.wait(10) == -signal.SIGKILL
    confirmed = [0, 0]
    for line in output.decode().splitlines():
        number, offset = line.split()
        confirmed[int(number)] = int(offset)
    return confirmed


def test_kill_9_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    """25 brokers one after the other on the same directory, each killed under load at a random moment: every confirmed
    record is there, in order, and as it was appended; and so is everything that the next one built on."""
    chance = random.Random(20_261_121)
    whole = [0, 0]
    for round_number in range(25):
        confirmed = killed(tmp_path, 90_000, lambda: chance.uniform(0.0, 0.12))
        outside = EmbeddedLogReader(tmp_path)
        seen = [queue.next_offset for queue in outside.queues]
        log = EmbeddedLog.open(tmp_path, 2, 90_000)
        for number, queue in enumerate(log.queues):
            there = queue.next_offset
            assert there == seen[number]
            assert there >= confirmed[number], f"round {round_number}: {confirmed[number]} confirmed, {there} there"
            start = max(0, whole[number] - 100)
            found = [
                record for block in queue.read(start) for record in block.records[max(0, start - block.first_offset) :]
            ]
            assert found == [record(offset) for offset in range(start, there)]
            whole[number] = there
        log.close()
    assert min(whole) > 100
    for number in range(2):
        verified = list(verify_chain(tmp_path / "log" / f"queues-{number}"))
        assert len(verified) > 1
        assert verified[-1].next_offset == whole[number]
        assert contents(EmbeddedLogReader(tmp_path).queues[number].read()) == [record(n) for n in range(whole[number])]
