"""The processes that read the past: who waits for whom, and what is given up."""

import asyncio
import os
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.rewind import worker as module
from rewindmq.engine.rewind.liveness import Hung, received
from rewindmq.engine.rewind.worker import ProcessEnded, TooManyQuestions, WorkerPool


@dataclass(frozen=True)
class Wait:
    """Answered with `value` when the file is there."""

    file: Path
    value: str = ""

    def answer(self) -> str:
        import time

        while not self.file.exists():
            time.sleep(0.01)
        return self.value


@dataclass(frozen=True)
class Begun:
    """Makes the file, and never ends."""

    file: Path

    def answer(self) -> str:
        import time

        self.file.touch()
        time.sleep(600)
        return ""


def run(scenario: Any) -> None:
    async def main() -> None:
        process = WorkerPool()
        try:
            async with asyncio.timeout(60):
                await scenario(process)
        finally:
            process.close()

    asyncio.run(main())


def test_a_user_waits_for_no_other_users_questions(tmp_path: Path) -> None:
    """One user asks all that a user may, and none of it is answered: another one's questions still are."""
    never, there = tmp_path / "never", tmp_path / "there"
    there.touch()

    async def scenario(process: WorkerPool) -> None:
        greedy = [asyncio.create_task(process.ask(Wait(never), "greedy")) for _ in range(1 + module.MOST_WAITING)]
        await asyncio.sleep(0)
        for number in range(3):
            assert await process.ask(Wait(there, f"a{number}"), "other") == f"a{number}"
        assert not any(task.done() for task in greedy)
        never.touch()
        await asyncio.gather(*greedy)

    run(scenario)


def test_users_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROCESSES", 1)
    there, order = tmp_path / "there", []

    async def asked(process: WorkerPool, user: str) -> None:
        await process.ask(Wait(there), user)
        order.append(user)

    async def scenario(process: WorkerPool) -> None:
        users = "aaaabbc"
        tasks = [asyncio.create_task(asked(process, user)) for user in users]
        await asyncio.sleep(0.05)
        there.touch()
        await asyncio.gather(*tasks)
        assert "".join(order) == "abcabaa"

    run(scenario)


def test_a_user_has_so_many_questions_waiting_and_no_more(tmp_path: Path) -> None:
    there = tmp_path / "there"

    async def scenario(process: WorkerPool) -> None:
        tasks = [asyncio.create_task(process.ask(Wait(there), "u")) for _ in range(1 + module.MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyQuestions, match="user 'u' has 8 questions about the past waiting"):
            await process.ask(Wait(there), "u")
        tasks[-1].cancel()
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(process.ask(Wait(there), "u")))
        there.touch()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [False] * 8 + [True, False]
        assert answers[-1] == ""

    run(scenario)


def test_a_question_that_is_given_up_frees_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROCESSES", 1)
    there, begun = tmp_path / "there", tmp_path / "begun"
    there.touch()

    async def scenario(process: WorkerPool) -> None:
        endless = asyncio.create_task(process.ask(Begun(begun), "u"))
        while not begun.exists():
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(process.ask(Wait(there, "x"), "v"))
        await asyncio.sleep(0)
        endless.cancel()
        assert await waiting == "x"
        assert endless.cancelled()

    run(scenario)


def test_all_that_a_user_asked_is_given_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a program ends that had asked many questions: each is cancelled, and none meets the end of another."""
    monkeypatch.setattr(module, "PROCESSES", 1)
    there, begun = tmp_path / "there", tmp_path / "begun"
    there.touch()

    async def scenario(process: WorkerPool) -> None:
        given_up = [asyncio.create_task(process.ask(Begun(begun), "u"))]
        given_up += (asyncio.create_task(process.ask(Wait(there), "u")) for _ in range(module.MOST_WAITING))
        while not begun.exists():
            await asyncio.sleep(0.01)
        for task in given_up:
            task.cancel()
        outcomes = await asyncio.gather(*given_up, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * len(given_up)
        assert await process.ask(Wait(there, "x"), "u") == "x"

    run(scenario)


def test_a_process_that_is_killed_costs_its_question_only(tmp_path: Path) -> None:
    begun, there = tmp_path / "begun", tmp_path / "there"
    there.touch()

    async def scenario(process: WorkerPool) -> None:
        lost = asyncio.create_task(process.ask(Begun(begun), "u"))
        while not begun.exists():
            await asyncio.sleep(0.01)
        [(running, _)] = process._busy
        running.kill()
        with pytest.raises(ProcessEnded):
            await lost
        assert await process.ask(Wait(there, "x"), "u") == "x"

    run(scenario)


def test_a_process_that_hangs_is_replaced_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is stopped, as by a debugger or a disk: its user gets an error, others wait for nothing, a stop ends it."""
    monkeypatch.setattr(module, "SILENT_LOOKS", 3)
    begun, there = tmp_path / "begun", tmp_path / "there"
    there.touch()

    async def scenario(process: WorkerPool) -> None:
        lost = asyncio.create_task(process.ask(Begun(begun), "u"))
        while not begun.exists():
            await asyncio.sleep(0.01)
        [(running, _)] = process._busy
        assert running.pid is not None
        os.kill(running.pid, signal.SIGSTOP)
        assert await process.ask(Wait(there, "x"), "another") == "x"
        with pytest.raises(ProcessEnded, match=r"hung for 3 s and was ended: ask again"):
            await lost
        running.join(30)
        assert running.exitcode == -signal.SIGKILL
        assert f"(pid {running.pid}) showed no life for 3 s" in caplog.text
        assert await process.ask(Wait(there, "y"), "u") == "y"
        [(idle, _), *_] = process._idle
        assert idle.pid is not None
        os.kill(idle.pid, signal.SIGSTOP)  # `close` of a stopped one ends

    run(scenario)


def test_a_long_answer_of_a_living_process_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_LOOKS", 10)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.2)
    there = tmp_path / "there"

    async def scenario(process: WorkerPool) -> None:
        answer = asyncio.create_task(process.ask(Wait(there, "x"), "u"))
        await asyncio.sleep(3)
        there.touch()
        assert await answer == "x"

    run(scenario)


def test_a_thread_that_waits_for_a_process_is_told_that_it_hangs() -> None:
    """The archiver and the index of ids are waited for in threads."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=module.answer_questions, args=(theirs, 0), daemon=True)
    process.start()
    theirs.close()
    ours.send(Wait(Path(__file__), "x"))
    assert received(ours, process).value == "x"
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Hung, match=rf"its process \(pid {process.pid}\) showed no life for 2 s, and was killed"):
        received(ours, process, most_looks=2)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(EOFError):
        received(ours, process)
