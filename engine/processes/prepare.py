"""Ends what an earlier run left in a data directory, before workers use it: in a process of its own.

What a broker does at its start is done here (`engine/embedded/start.py`): the end of the log is repaired, all earlier
sessions and workers end, messages that were not durable go, new rules begin. The state that this takes is freed with
the process: the process that writes the log keeps none.
"""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from types import FrameType

import uvloop

from rewindmq.engine.config import ArchiveConfig, Config
from rewindmq.engine.embedded.lifecycle import Alone
from rewindmq.engine.log.embedded.directory import NEW_PARTITIONS, PROCESSES, STATES, layout_file
from rewindmq.engine.log.served.states import FileStates
from rewindmq.engine.process import SOFTWARE, Failure, open_any, open_archive, say_failure

PARTITIONS_A_WORKER = 2  # of a new log: a worker that is started again or has more to do leaves one to the others


class Stopped(Exception):
    """A signal came while the directory was being prepared."""


def prepared(config: Config) -> int:
    """Prepare the data directory in a child process, and wait for it. Returns its exit code.

    Call it before threads and loops are there. Raises Stopped: SIGTERM or SIGINT came."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _run(config)
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        os.kill(child, signal.SIGKILL)  # as at a power cut: the next start does the rest

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _, status = os.waitpid(child, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise Stopped
    return os.waitstatus_to_exitcode(status)


def _run(config: Config) -> None:
    """Prepare, and end this process."""
    code = SOFTWARE
    try:
        uvloop.run(_prepare(config))
        code = 0
    except Failure as error:
        say_failure(config, error)
        code = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


async def _prepare(config: Config) -> None:
    archiver = await open_archive(config)  # what prevents a start is found before anything is written
    if archiver is not None:
        archiver.stop()
    config = replace(config, archive=ArchiveConfig(), keep_history_ms=None)  # the first process looks after the log
    if config.partitions is None and not layout_file(config.data).exists():
        config = replace(config, partitions=max(NEW_PARTITIONS, PARTITIONS_A_WORKER * config.processes))
    broker = await open_any(config, lambda error: None)
    alone = broker.keeper
    assert isinstance(alone, Alone)
    await asyncio.to_thread((config.data / PROCESSES).mkdir, exist_ok=True)
    alone.hand_over(FileStates(config.data / PROCESSES / STATES))
