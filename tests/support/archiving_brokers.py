"""Brokers that archive their history while they run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.keeping.archive_process import NICENESS
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from tests.support.archive_commands import Place
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.pika_clients import numbered, publish_confirmed
from tests.support.processes import children_of
from tests.support.running import RunningBroker

SOON = ("--segment-age", "1s", "--archive-lag", "1s")
Start = Callable[..., RunningBroker]


@pytest.fixture
def begin(start_broker: Start, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunningBroker]:
    """`begin(place, data=None, *options)`: a broker that archives to the place."""

    def start(place: Place, data: Path | None = None, *options: str) -> RunningBroker:
        for name, value in place.environment.items():
            monkeypatch.setenv(name, value)
        return start_broker(data, "--archive", place.url, *(options or SOON))

    return start


def history_item(broker: RunningBroker) -> dict[str, Any]:
    """The broker's report on its history."""
    with api_client(broker) as api:
        item: dict[str, Any] = api.get("/overview").json()["history"]
    return item


def archive_item(broker: RunningBroker) -> dict[str, Any]:
    """The broker's report on its archive."""
    item: dict[str, Any] = history_item(broker)["archive"]
    return item


def publish(broker: RunningBroker, numbers: range, queue: str = "orders") -> None:
    publish_confirmed(broker, queue, numbered(numbers))


def log_lines(broker: RunningBroker, text: str) -> int:
    """Return the number of lines in the broker's log that contain this text."""
    return sum(text in line for line in broker.errors)


def all_archived(broker: RunningBroker) -> None:
    """Wait until no durable record is outside the archive."""

    def caught_up() -> bool:
        item = archive_item(broker)
        return item["lag_records"] == 0 and item["error"] is None

    until(caught_up, f"the archive stays behind: {archive_item(broker)}: {''.join(broker.errors)}")


def archiver_of(broker: RunningBroker) -> int | None:
    """The process id of the broker's archiver: its child that is nice."""
    nice = []
    for child in children_of(broker.process.pid):
        try:
            if os.getpriority(os.PRIO_PROCESS, child) == NICENESS:
                nice.append(child)
        except ProcessLookupError:
            continue
    assert len(nice) <= 1
    return nice[0] if nice else None


def require_same(data: Path, place: Place) -> int:
    """The archive verifies, and each archived segment is the one in the directory, byte for byte; one after the other
    without a gap. Returns how many segments."""
    done = run("archive_verify", "--archive", place.url, "-q", **place.environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    objects = open_objects(place.url)
    count = 0
    for directory in sorted((data / "log").glob("*-*")):
        manifest = Manifest.load(objects, directory.name)
        files = {base_offset_of(path): path for path in segment_files(directory)}
        end = 0
        for entry in manifest.segments:
            assert entry.base_offset == end, "a gap, or something twice"
            end = entry.next_offset
            stored = b"".join(Unpacked(objects, directory.name, entry).original_bytes())
            if entry.base_offset >= min(files):  # else it was removed here
                assert stored == files[entry.base_offset].read_bytes()
            count += 1
    return count
