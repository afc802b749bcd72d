"""Worker processes for long questions, such as a fold of history or a large body in JSON: they must not take the
broker's time.

    answer = await workers.ask(question, user)          # question.answer() is called in a worker

- A pool has at most PROCESSES, started when they are needed, each with one question at a time. Questions and answers go
  through a pipe, so a refusal is a value, too.
- A user has one question under way, and users that wait take turns. So no user waits for all the questions of another
  one.
- A user has at most MOST_WAITING questions waiting (TooManyQuestions). If the asker is cancelled, its question is given
  up, and the process that works on it is ended.
- A process that shows no life while it works on a question (liveness.py) is killed, and the next question starts
  another one. So a disk that hangs costs a user one answer (ProcessEnded). A living process may take its time.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Generic, Protocol, TypeVar, cast

from rewindmq.engine.logging_setup import log_to_stderr
from rewindmq.engine.rewind.liveness import LOOK_SECONDS, SILENT_LOOKS, Silence

PROCESSES = 2
NICENESS = 10  # of processes that read the past: where processor time is short, the broker has nine parts of ten
END_SECONDS = 0.1  # for a killed process to end; the loop waits so long
MOST_WAITING = 8  # questions of one user, besides the one under way

logger = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Question(Protocol[T_co]):
    """A question that can be pickled, with an answer that can be, too."""

    def answer(self) -> T_co:
        """Find the answer, in the worker. Must not raise."""


class ProcessEnded(Exception):
    """The worker ended before it answered (it was closed, killed, or hung): ask again."""


class TooManyQuestions(Exception):
    """Too many questions of this user wait already. The text says so, for people."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer(Generic[T]):
    """An answer on its way through the pipe. `defect`: what `answer` raised, which it must not."""

    value: T | None
    defect: str | None


Running = tuple[SpawnProcess, Connection]


class WorkerPool:
    """The processes, and the questions that wait for one. `niceness`: by so much they give way to the broker."""

    def __init__(self, niceness: int = 0) -> None:
        self._niceness = niceness
        self._idle: list[Running] = []
        self._busy: list[Running] = []
        self._free = PROCESSES
        self._under_way: set[str] = set()  # users
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by user; the user whose turn is next comes first

    async def ask(self, question: Question[T], user: str) -> T:
        """Have a worker answer the question. ProcessEnded; TooManyQuestions; RuntimeError for a defect of ours: the
        process lives on."""
        await self._turn(user)
        try:
            found = await self._answered(question)
        finally:
            self._leave(user)
        if found.defect is not None:
            raise RuntimeError(found.defect)
        return cast(T, found.value)

    async def _turn(self, user: str) -> None:
        line = self._waiting.setdefault(user, deque())
        if len(line) >= MOST_WAITING:
            raise TooManyQuestions(
                f"user '{user}' has {len(line)} questions about the past waiting: wait for their answers"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just come
                self._leave(user)
            elif turn in line:
                line.remove(turn)
            raise

    def _leave(self, user: str) -> None:
        """A process is free. The other users come before this one."""
        self._under_way.discard(user)
        self._free += 1
        if user in self._waiting:
            self._waiting[user] = self._waiting.pop(user)
        self._next()

    def _next(self) -> None:
        """Give the free processes to the users whose turn it is."""
        for user in list(self._waiting):
            line = self._waiting[user]
            while line and line[0].cancelled():  # its asker was cancelled, and has not run since
                line.popleft()
            if line and self._free and user not in self._under_way:
                self._free -= 1
                self._under_way.add(user)
                line.popleft().set_result(None)
            if not line:
                del self._waiting[user]

    async def _answered(self, question: Question[T]) -> WorkerAnswer[T]:
        running = self._idle.pop() if self._idle else _started(self._niceness)
        process, connection = running
        self._busy.append(running)
        answer = asyncio.ensure_future(asyncio.to_thread(_ask, connection, question))
        try:
            await _answer_or_silence(process, answer)
            found = answer.result()
        except (EOFError, OSError):
            _end(running)
            raise ProcessEnded("the process that reads the past ended: ask again") from None
        except (asyncio.CancelledError, ProcessEnded):  # this answer must not be taken for the next question's
            answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            _end(running)
            raise
        finally:
            self._busy.remove(running)
        self._idle.append(running)
        return found

    def close(self) -> None:
        """End all workers. What they are working on is given up."""
        for running in (*self._busy, *self._idle):
            _end(running)
        self._idle.clear()


async def _answer_or_silence(process: SpawnProcess, answer: "asyncio.Future[WorkerAnswer[T]]") -> None:
    """Wait for the answer. ProcessEnded: the process hangs."""
    silence = Silence(process.pid)
    while not (await asyncio.wait([answer], timeout=LOOK_SECONDS))[0]:
        if silence.look() >= SILENT_LOOKS:
            seconds = SILENT_LOOKS * LOOK_SECONDS
            logger.error(
                "the process that reads the past (pid %s) showed no life for %.0f s and is killed; the next question"
                " starts another one. Does the disk answer?",
                process.pid,
                seconds,
            )
            raise ProcessEnded(f"the process that reads the past hung for {seconds:.0f} s and was ended: ask again")


def _end(running: Running) -> None:
    """End a process, also a stopped one. One that waits for its disk ends when that answers: nothing here waits for it.

    The thread that waits for its answer sees the end of the pipe."""
    process, connection = running
    process.kill()
    shut(connection)
    process.join(END_SECONDS)


def shut(connection: Connection) -> None:
    """End a pipe for both sides, and wake a thread that reads it."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _started(niceness: int) -> Running:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=answer_questions, args=(theirs, niceness), name="past", daemon=True)
    process.start()
    theirs.close()  # else this process would not see the end of the pipe
    return process, ours


def _ask(connection: Connection, question: Question[T]) -> WorkerAnswer[T]:
    connection.send(question)
    return cast(WorkerAnswer[T], connection.recv())


def answer_questions(connection: Connection, niceness: int) -> None:
    """The worker's main function: answer questions as long as the broker lives. Ctrl-C goes to the whole process group,
    so it is ignored here: the broker ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    log_to_stderr("warning")
    while True:
        try:
            question: Question[object] = connection.recv()
            try:
                found = WorkerAnswer(question.answer(), None)
            except Exception as error:
                logger.exception("reading the past failed")
                found = WorkerAnswer(None, f"{type(error).__name__}: see the broker's log")
            connection.send(found)
        except (EOFError, BrokenPipeError):
            return
