"""A short run of `python -m tests.fuzz`: nothing that it sends meets a defect, and a defect would be seen."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fuzz.__main__ import Result, fuzz, judge
from tests.fuzz.requests_sent import Requests
from tests.fuzz.streams_sent import HostileStreams, codes_in
from tests.support.amqp_wire import method
from tests.support.running import RunningBroker

FRAMES, REQUESTS = 4_000, 2_000


def test_some_thousands_of_frames_and_requests(tmp_path: Path) -> None:
    result = asyncio.run(fuzz(tmp_path / "data", FRAMES, REQUESTS, seconds=240, seed=1_000))
    assert result.defects == [], result.table()
    assert result.told["frames"] >= FRAMES
    assert result.told["requests"] == REQUESTS
    assert {"200", "201", "204", "400", "404", "405", "501", "502"} <= result.told.keys(), result.told
    assert len(result.latencies_ms) > 10, "the bystander was served"


def test_a_seed_is_a_run() -> None:
    assert [HostileStreams(3).next() for _ in range(5)] == [HostileStreams(3).next() for _ in range(5)]
    assert [Requests(3).next() for _ in range(50)] == [Requests(3).next() for _ in range(50)]


def test_a_defect_would_be_seen() -> None:
    close = method(0, "Connection.Close", reply_code=541, reply_text="INTERNAL_ERROR", class_id=0, method_id=0)
    assert codes_in(method(1, "Channel.OpenOk") + close) == ["541"]

    broker = RunningBroker.__new__(RunningBroker)
    ended: Any = SimpleNamespace(returncode=None, poll=lambda: None)
    broker.process = ended
    broker.errors = [
        "2026-11-22T00:00:00.000Z [warning] a line\n",
        "2026-11-22T00:00:01.000Z [error] in a method\n",
        '  File "engine/x.py", line 1, in f\n',
        "KeyError: 'x'\n",
    ]
    result = Result()
    judge(broker, result)
    [defect] = result.defects
    assert "in a method" in defect
    assert defect.endswith("KeyError: 'x'")
