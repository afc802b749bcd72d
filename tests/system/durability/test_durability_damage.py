"""Damage done to the files while the broker is stopped: a torn end is cut and said, everything else is refused.

a block begun and not ended                          starts, says on stderr what it cut, all that was whole is there
the end missing, in the index too                    the same: a prefix is there
the end missing that the index knows as synced       exit code 65: confirmed messages are gone, that is not hidden;
                                                     half a block: --accept-lost-end starts, and keeps it aside
a byte changed that a start must read                exit code 65, file and byte on stderr, every file as it was
a record changed below the stored state              a start need not read it; `rewindmq verify` finds it
"""

import hashlib
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kept_queue import consume, publish, verify
from tests.support.ports import free_port
from tests.support.running import ROOT, RunningBroker

DATA_ERROR = 65  # sysexits.h EX_DATAERR, see engine/process.py
MESSAGES = 300
ONE = ("--partitions", "1")


def segment(data: Path) -> Path:
    (only,) = (data / "log" / "queues-0").glob("*.avro")
    return only


def digests(data: Path) -> dict[str, str]:
    """Of the log, byte by byte; not of sidecars, which the start of a sound partition may have to make up to date."""
    return {
        str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((data / "log").rglob("*"))
        if path.is_file() and path.suffix not in (".index", ".lengths")
    }


def refused(data: Path) -> str:
    """A start that must fail with DATA_ERROR; its one line on stderr."""
    command = [
        sys.executable,
        "-m",
        "rewindmq.engine",
        "--data",
        str(data),
        "--amqp-port",
        str(free_port()),
        "--http-port",
        str(free_port()),
        *ONE,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == DATA_ERROR, ended.stderr
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert lines[-1].startswith("rewindmq: "), ended.stderr
    assert "Traceback" not in ended.stderr
    return lines[-1]


def cut_said(broker: RunningBroker, path: Path) -> int:
    """The number of bytes that the broker says it cut."""
    said = re.search(re.escape(str(path)) + r".*?(\d+) bytes", "".join(broker.errors))
    assert said, broker.errors
    return int(said[1])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_block_that_was_not_ended_is_cut_and_said(
    tmp_path: Path, start_broker: Callable[..., RunningBroker], seed: int
) -> None:
    """As a crash leaves it: the group commit was on its way, nobody was told that it is durable."""
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, MESSAGES)
    broker.kill()
    path = segment(data)
    size = path.stat().st_size
    torn = random.Random(seed).randrange(1, 2_000)
    with open(path, "ab") as file:
        file.write(encode_long(1) + encode_long(100_000) + b"x" * torn)
    again = start_broker(data, *ONE)
    assert cut_said(again, path) == torn + len(encode_long(1) + encode_long(100_000))
    assert path.stat().st_size >= size
    assert consume(again) == list(range(MESSAGES))
    goes_on(again, MESSAGES)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_an_end_that_the_index_does_not_know_is_cut_and_said(
    tmp_path: Path, start_broker: Callable[..., RunningBroker], seed: int
) -> None:
    """Any number of bytes off the end, and no index that knows better: what stays is a prefix, and it goes on."""
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, MESSAGES)
    broker.kill()
    path = segment(data)
    for sidecar in path.parent.glob("_*"):
        sidecar.unlink()
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(size - random.Random(seed).randrange(1, 10_000))
    again = start_broker(data, *ONE)
    assert cut_said(again, path) > 0
    got = consume(again)
    assert got == list(range(len(got)))
    assert 0 < len(got) < MESSAGES
    goes_on(again, len(got))


def goes_on(broker: RunningBroker, count: int) -> None:
    publish(broker, count, 10)
    assert consume(broker) == list(range(count + 10))
    assert broker.stop() == 0
    checked = verify(broker.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.long
@pytest.mark.parametrize("cleanly", [False, True], ids=["killed", "stopped"])
def test_half_a_block_that_was_synced_is_cut_and_said_if_accepted(
    tmp_path: Path, start_broker: Callable[..., RunningBroker], cleanly: bool
) -> None:
    """After a clean stop RocksDB and a snapshot know more than the log does then: both are made anew."""
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, MESSAGES)
    if cleanly:
        assert broker.stop() == 0
    else:
        broker.kill()
    path = segment(data)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 10)
    before = digests(data)
    assert f"the log lost its end: {path} ends within the block at byte" in refused(data)
    assert digests(data) == before
    again = start_broker(data, *ONE, "--accept-lost-end")
    assert any("which had been synced" in line and str(path) in line for line in again.errors), again.errors
    assert list((data / "aside").glob("*/queues-0/*.torn"))
    got = consume(again)
    assert got == list(range(len(got)))
    assert len(got) > 0
    goes_on(again, len(got))


@pytest.mark.long
def test_an_end_that_was_synced_and_is_missing_is_refused(
    tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    """Whole blocks are gone: that is no torn end."""
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, MESSAGES)
    broker.kill()
    path = segment(data)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    before = digests(data)
    assert str(path) in refused(data)
    assert digests(data) == before


def encode_long(value: int) -> bytes:
    """Avro's zig-zag long."""
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@pytest.mark.long
def test_a_changed_byte_is_refused_with_file_and_place(
    tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    """In the middle of what a start must read: no start, no repair, nothing deleted; put back, all is well."""
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, MESSAGES)
    broker.kill()
    path = segment(data)
    place = path.read_bytes().index(b"kept", path.stat().st_size - 10_000)
    change(path, place)
    before = digests(data)
    line = refused(data)
    assert str(path) in line
    found = re.search(r"byte (\d+)", line)
    assert found, line
    assert abs(int(found[1]) - place) < 1_000, line  # where its block begins
    assert refused(data) == line, "the second start says the same"
    assert digests(data) == before
    assert verify(data).returncode == 1
    change(path, place)
    assert consume(start_broker(data, *ONE)) == list(range(MESSAGES))


@pytest.mark.long
def test_a_changed_schema_in_a_header_is_refused(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> None:
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, 10)
    broker.kill()
    path = segment(data)
    place = path.read_bytes().index(b'"name"')
    change(path, place)
    assert f"{path}: block at byte 0" in refused(data)
    assert verify(data).returncode == 1


def test_a_changed_record_is_found_by_verify_after_a_clean_stop(
    tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    data = tmp_path / "data"
    broker = start_broker(data, *ONE)
    publish(broker, 0, MESSAGES)
    assert broker.stop() == 0
    path = segment(data)
    change(path, path.read_bytes().index(b"kept", path.stat().st_size - 10_000))  # inside a record
    checked = verify(data)
    assert checked.returncode == 1
    assert str(path) in checked.stdout + checked.stderr


def change(path: Path, place: int) -> None:
    """Flip one bit; twice is never."""
    with open(path, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes((byte ^ 0x10,)))
