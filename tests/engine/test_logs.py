"""What a broker logs: a line with time and level; not by what Python would do without us."""

import logging
import re
import subprocess
import sys
from collections.abc import Callable

import pika

from engine.logs import LONGEST_MESSAGE, Line
from tests.running import ROOT, RunningBroker

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \[(\w+)\] (.+)\n")


def test_lines_have_a_time_and_a_level(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker()
    pika.BlockingConnection(pika.URLParameters(running.amqp_url)).close()
    assert running.stop() == 0
    found = [LINE.fullmatch(line) for line in running.errors]
    assert all(found), running.errors
    said = [(match[1], match[2]) for match in found if match is not None]
    assert any(level == "info" and text.endswith("user 'guest' connected to vhost '/'") for level, text in said), said
    assert said[-1] == ("info", "stopped")


def test_what_is_less_than_the_level_is_not_said(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker(None, "--log-level", "error")
    pika.BlockingConnection(pika.URLParameters(running.amqp_url)).close()
    assert running.stop() == 0
    assert running.errors == []


def test_text_from_outside_cannot_pass_for_a_line_or_control_a_terminal() -> None:
    name = "q\n2026-11-22T07:05:09.123Z [info] user 'root' connected\x1b[2J\u202e\udc80é" + "x" * 10_000
    record = logging.makeLogRecord({"msg": "queue '%s' is gone", "args": (name,), "levelname": "WARNING"})
    line = Line("%(levelname)s %(message)s").format(record)
    forged = "2026-11-22T07:05:09.123Z [info] user 'root' connected"
    assert line.startswith(f"warning queue 'q\\n{forged}\\x1b[2J\\u202e\\udc80éx")
    assert line.isprintable()
    assert len(line) < LONGEST_MESSAGE + 100


def test_a_defect_is_told_with_its_place_and_without_text_from_outside() -> None:
    outside = "\x1b[2Jé\nTraceback (most recent call last):\n" + "y" * 10_000

    def inner() -> None:
        raise KeyError(outside)

    try:
        try:
            inner()
        except KeyError as error:
            raise ValueError(outside) from error
    except ValueError as error:
        raised = (ValueError, error, error.__traceback__)
    record = logging.makeLogRecord({"msg": "in a method", "levelname": "ERROR", "exc_info": raised})
    text = Line("%(message)s").format(record)
    assert all(line.isprintable() for line in text.split("\n"))
    assert "in inner" in text
    told = [line.partition(":")[0] for line in text.split("\n") if line[0] != " "]
    assert told == ["in a method", "KeyError", "ValueError"]
    assert "\\x1b" in text
    assert len(text) < 2_000


def test_what_the_loop_says_of_a_task_that_nobody_waits_for_is_a_line() -> None:
    program = (
        "import asyncio\nfrom engine.logs import log_to_stderr\nlog_to_stderr('info')\n"
        "async def fail(): raise ValueError('a' * 9_000 + chr(27))\n"
        "async def main():\n    asyncio.ensure_future(fail())\n    await asyncio.sleep(0.01)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Task exception was never retrieved\\nfuture" in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < LONGEST_MESSAGE + 2_000
