"""A broker whose history is trimmed several times a second, in small segments; it dies where a test says.

The file that REWINDMQ_TEST_DIE names has a step of a trim, and who dies in it: `written process`, `asked broker`. Steps
of the process: audited, written, asking, answered, cutting, removed; of the broker: asked, appended.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from rewindmq.engine.broker.history_trims import HistoryTrims
from rewindmq.engine.cli.main import main
from rewindmq.engine.embedded import start
from rewindmq.engine.keeping import keep_history
from rewindmq.engine.keeping.in_directory import DirectoryHistory
from rewindmq.engine.log.embedded import steady_time
from rewindmq.engine.log.embedded.log import EmbeddedLog
from tests.support.failpoints import arm
from tests.support.records import SCHEMA_BYTES
from tests.support.running import RunningBroker

DIE = "REWINDMQ_TEST_DIE"
IN_BROKER = __name__ == "__main__"  # else in the process beside it, which imports this module anew


class HastyBroker(RunningBroker):
    """A broker that begins a segment every 14 KB, without its header. `die`: the file that says where."""

    program = ("-m", "tests.support.hasty_trims")


def die_at(step: str) -> None:
    """Kill who is to die in this step, if anybody is."""
    file = Path(os.environ.get(DIE, "/nowhere"))
    try:
        asked, who = file.read_text().split()
    except (FileNotFoundError, ValueError):
        return
    if asked != step:
        return
    file.unlink()
    if IN_BROKER:
        [beside] = multiprocessing.active_children()
        pid = os.getpid() if who == "broker" else beside.pid
    else:
        pid = os.getppid() if who == "broker" else os.getpid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def dying(owner: Any, name: str, before: str = "", after: str = "") -> None:
    """Let a function have these steps."""
    unchanged: Callable[..., Any] = getattr(owner, name)

    @wraps(unchanged)
    def stepping(*given: Any, **named: Any) -> Any:
        if before:
            die_at(before)
        found = unchanged(*given, **named)
        if after:
            die_at(after)
        return found

    setattr(owner, name, stepping)


def arm_dying(point: str, step: str) -> None:
    """Let a point of the product be this step."""
    arm(point, lambda *_: die_at(step))


if __name__ in ("__main__", "__mp_main__"):
    start.open_log = lambda config: EmbeddedLog.open(config.data, config.partitions, SCHEMA_BYTES + 14_000)
    keep_history.LOOK_SECONDS = 0.2  # type: ignore[misc]
    keep_history.APART_SECONDS = steady_time.APART_SECONDS = 0.1  # type: ignore[attr-defined,misc]
    keep_history.STRETCH_BYTES = 200_000  # type: ignore[misc]
    arm_dying("trim.before_base", "audited")
    arm_dying("trim.before_event", "written")
    arm_dying("trim.after_end", "removed")
    dying(DirectoryHistory, "append", before="asking", after="answered")
    arm("cut.before_file", lambda path: die_at("cutting") if path.suffix != ".avro" else None)
    dying(HistoryTrims, "log", before="asked", after="appended")
if IN_BROKER:
    import sys

    main(["start", *sys.argv[1:]])
