"""The broker's own log, on stderr: a line each, with its time in UTC and its level.

    2026-11-22T07:05:09.123Z [info] 127.0.0.1:40212: user 'guest' connected to vhost '/'

Names come from outside and may hold anything. So characters that move a terminal's cursor, begin a line or turn the
direction of writing are escaped, and what follows a line (a traceback) is indented: no name can pass for a line.
"""

import logging
import re
import time
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
OURS = ("rewindmq", "engine", "projections", "schemas")

# Control characters, line and paragraph separators, marks of direction, halves of surrogate pairs.
UNSAFE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def escaped(text: str) -> str:
    """The text on one line, as Python writes such characters: `\\x1b`, `\\n`."""
    return UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


class Line(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join("  " + escaped(line) for line in super().formatException(ei).split("\n"))


def log_to_stderr(level: str) -> None:
    """What is ours from `level` on; of libraries what is a warning or worse."""
    handler = logging.StreamHandler()
    handler.setFormatter(Line("%(asctime)s [%(levelname)s] %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    set_level(level)


def set_level(level: str) -> None:
    """From now on log what is ours from `level` on."""
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
