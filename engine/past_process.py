"""The process that folds history for whoever asks about the past: a long history must not take the broker's time.

    answer = await past_process.ask(question)          # question.answer() is called over there

One process, begun with the first question, and one question at a time. Questions and answers go through a pipe, so an
answer that is a refusal is a value, too.
"""

import asyncio
import logging
import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Generic, Protocol, TypeVar, cast

from engine.logs import log_to_stderr

logger = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Question(Protocol[T_co]):
    def answer(self) -> T_co: ...


class ProcessEnded(Exception):
    """The process ended over the question (it was closed, or killed): ask again."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """`defect`: what `answer` raised, which it must not."""

    value: T | None
    defect: str | None


class PastProcess:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._running: tuple[SpawnProcess, Connection] | None = None

    async def ask(self, question: Question[T]) -> T:
        """ProcessEnded; RuntimeError for a defect of ours: the process lives on."""
        async with self._turn:
            if self._running is None:
                self._running = _started()
            try:
                found = await asyncio.to_thread(_ask, self._running[1], question)
            except (EOFError, OSError):
                self.close()
                raise ProcessEnded("the process that reads the past ended: ask again") from None
            except asyncio.CancelledError:  # nobody waits for this answer, and it must not be taken for the next one's
                self.close()
                raise
        if found.defect is not None:
            raise RuntimeError(found.defect)
        return cast(T, found.value)

    def close(self) -> None:
        """What is being read is given up."""
        if self._running is not None:
            process, _ = self._running  # who waits for its answer learns that there is none, and lets the pipe go
            self._running = None
            process.terminate()
            process.join()


past_process = PastProcess()


def _started() -> tuple[SpawnProcess, Connection]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=answer_questions, args=(theirs,), name="past", daemon=True)
    process.start()
    theirs.close()  # so that its end is seen here
    return process, ours


def _ask(connection: Connection, question: Question[T]) -> Answer[T]:
    connection.send(question)
    return cast(Answer[T], connection.recv())


def answer_questions(connection: Connection) -> None:
    """In the reading process, as long as the broker lives. Ctrl-C goes to the whole process group; the broker ends its
    reader."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_to_stderr("warning")
    while True:
        try:
            question: Question[object] = connection.recv()
            try:
                found = Answer(question.answer(), None)
            except Exception as error:
                logger.exception("reading the past failed")
                found = Answer(None, f"{type(error).__name__}: see the broker's log")
            connection.send(found)
        except (EOFError, BrokenPipeError):
            return
