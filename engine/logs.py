"""The broker's own log, on stderr: a line each, with its time in UTC and its level.

    2026-11-22T07:05:09.123Z [info] 127.0.0.1:40212: user 'guest' connected to vhost '/'
"""

import logging
import time

LEVELS = ("debug", "info", "warning", "error")
OURS = ("rewindmq", "engine", "projections", "schemas")


class Line(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().format(record)


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
