"""Lines of the log: no name from outside can pass for a line, or for a command to a terminal."""

import json
import logging
import sys
from typing import Any

import pytest

from rewindmq.engine.logging_setup import JsonLine, LineFormatter, escaped

LINE = LineFormatter("%(asctime)s [%(levelname)s] %(message)s")


def line_of(message: str, *arguments: object, exc_info: Any = None) -> str:
    record = logging.LogRecord("engine", logging.INFO, "file.py", 1, message, arguments, exc_info)
    return LINE.format(record)


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
    text = LineFormatter("%(message)s").format(record)
    assert all(line.isprintable() for line in text.split("\n"))
    assert "in inner" in text
    assert text.startswith("in a method\n")
    told = [line.partition(":")[0] for line in text.split("\n")[1:] if line[2] != " "]
    assert told == ["  Traceback, the first error first", "  KeyError", "  ValueError"]
    assert "\\x1b" in text
    assert len(text) < 2_000


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("q\n2026-11-22T07:05:09.123Z [info] user 'admin' connected", "q\\n2026-"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\rb\tc\x00", "a\\rb\\tc\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("\u2028next\u202eevil", "\\u2028next\\u202eevil"),
        ("half \ud83d", "half \\ud83d"),
        ("Größe ✓ 雨", "Größe ✓ 雨"),
    ],
)
def test_names_are_shown_on_one_line(name: str, shown: str) -> None:
    written = line_of("queue '%s' was deleted", name)
    assert shown in written
    assert len(written.splitlines()) == 1


def test_what_an_exception_says_cannot_begin_a_line() -> None:
    try:
        raise ValueError("no\n2026-11-22T07:05:09.123Z [info] forged \x1b[1m")
    except ValueError:
        written = line_of("failed", exc_info=sys.exc_info())
    first, *others = written.splitlines()
    assert first.endswith("[info] failed")
    assert "Traceback" in others[0]
    assert all(line.startswith("  ") for line in others)
    assert "\x1b" not in written


def test_plain_text_stays() -> None:
    assert escaped("a 'b' \\ c") == "a 'b' \\ c"


JSON = JsonLine()


def test_b48_json_is_one_object_a_line_with_the_fields_of_the_message() -> None:
    record = logging.LogRecord("rewindmq.x", logging.WARNING, "file.py", 1, "queue '%s'", ("a\nb\x1b",), None)
    record.queue, record.odd = "a\nb", {1, 2}
    line = JSON.format(record)
    assert line.isprintable()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning",
        "logger": "rewindmq.x",
        "message": "queue 'a\\nb\\x1b'",
        "queue": "a\nb",
        "odd": "{1, 2}",
    }


def test_b48_json_has_a_traceback_as_lines() -> None:
    try:
        raise ValueError("no\n{")
    except ValueError:
        record = logging.LogRecord("rewindmq", logging.ERROR, "file.py", 1, "failed", (), sys.exc_info())
    found = json.loads(JSON.format(record))
    assert found["message"] == "failed"
    assert found["error"][-1] == "ValueError: 'no\\n{'"
    assert "test_b48_json_has_a_traceback" in "".join(found["error"])
