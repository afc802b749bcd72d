"""The event loop's report of a failed task is one line of the process's log."""

import subprocess
import sys

from rewindmq.engine.logging_setup import LONGEST_MESSAGE
from tests.support.running import ROOT


def test_what_the_loop_says_of_a_task_that_nobody_waits_for_is_a_line() -> None:
    program = (
        "import asyncio\nfrom rewindmq.engine.logging_setup import log_to_stderr\nlog_to_stderr('info')\n"
        "async def fail(): raise ValueError('a' * 9_000 + chr(27))\n"
        "async def main():\n    asyncio.ensure_future(fail())\n    await asyncio.sleep(0.01)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Task exception was never retrieved\\nfuture" in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < LONGEST_MESSAGE + 2_000
