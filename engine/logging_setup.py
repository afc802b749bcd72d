"""The broker's own log on stderr: one line for each message, with its time in UTC and its level.

    2026-11-22T07:05:09.123Z [info] 127.0.0.1:40212: user 'guest' connected to vhost '/'

Names come from clients and may hold any character. So the formatter escapes characters that move a terminal's cursor,
begin a line or turn the direction of writing, and it indents the lines after the first (a traceback): no name can pass
for a line. It cuts long messages. Of an error it shows the place and a quoted, escaped and short form of the error's
text, because the text may come from a client, too.

With --log-format json each message is one JSON object a line, with the same limits:

    {"time": "2026-11-22T07:05:09.123Z", "level": "info", "logger": "rewindmq.engine.amqp.connection", "message": "..."}

A traceback is in the field `error`, an array of lines. What a message was logged with (`extra=`) are further fields.
"""

import logging
import os
import re
import time
import traceback
from types import TracebackType

from rewindmq.schemas.json_values import json_text

LONGEST_MESSAGE = 4_000  # characters
LONGEST_ERROR = 200
FRAMES_SHOWN = 30
ERRORS_SHOWN = 5  # errors of one chain, each the cause of the next
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
FORMAT_VARIABLE = "REWINDMQ_LOG_FORMAT"
# What each record has; all else came with `extra`.
OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
OURS = ("rewindmq",)

# Control characters, line and paragraph separators, direction marks, halves of surrogate pairs.
UNSAFE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def escaped(text: str) -> str:
    """Return the text on one line, at most LONGEST_MESSAGE characters of it.

    Unsafe characters look as in Python: `\\x1b`, `\\n`."""
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]}... ({len(text)} characters)"
    return UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LineFormatter(logging.Formatter):
    """Formats a record as one line, and a traceback as indented lines below it."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _Raised) -> str:
        lines = "".join(error_lines(ei[1])).splitlines() if ei[1] is not None else []
        return "\n".join(("  Traceback, the first error first:", *(f"  {escaped(line)}" for line in lines)))


class JsonLine(LineFormatter):
    """Formats a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": escaped(record.getMessage()),
        }
        found |= {key: value for key, value in vars(record).items() if key not in OF_EVERY_RECORD and key not in found}
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(error_lines(record.exc_info[1])).splitlines()
            found["error"] = [escaped(line) for line in lines]
        return json_text(found, default=lambda value: escaped(str(value)))


def error_lines(error: BaseException) -> list[str]:
    """Return lines that say where an error happened, with the errors that caused it, the first error first."""
    chain = [error]
    while len(chain) < ERRORS_SHOWN:
        last = chain[-1]
        led_to = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if led_to is None:
            break
        chain.append(led_to)
    lines = []
    for each in reversed(chain):
        lines += traceback.format_tb(each.__traceback__, -FRAMES_SHOWN)
        for member in getattr(each, "exceptions", ())[:ERRORS_SHOWN]:  # of an exception group
            lines += error_lines(member)
        text = ascii(str(each)[: LONGEST_ERROR + 1])
        text = text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + "..."
        lines.append(f"{type(each).__qualname__}: {text}{', which led to:' if each is not error else ''}\n")
    return lines


def log_to_stderr(level: str, form: str | None = None) -> None:
    """Log to stderr: RewindMQ's messages from `level` on, and the warnings and errors of libraries.

    `form`: one of FORMATS. Processes that this one starts have the same; there it is not given."""
    if form is not None:
        os.environ[FORMAT_VARIABLE] = form
    if os.environ.get(FORMAT_VARIABLE) == "json":
        formatter: LineFormatter = JsonLine()
    else:
        formatter = LineFormatter("%(asctime)s [%(levelname)s] %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    set_level(level)


def set_level(level: str) -> None:
    """Log RewindMQ's messages from `level` on."""
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
