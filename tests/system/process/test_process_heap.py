"""Freed memory is kept for the next large body: page faults are counted, not time."""

import subprocess
import sys

from rewindmq.engine.runtime.heap import KEPT_BYTES, LEAST_LIMIT_BYTES

COPY_LARGE_BODIES = f"""
import resource, sys
from rewindmq.engine.runtime.heap import keep_freed_memory
body = bytes({KEPT_BYTES // 4})
keep_freed_memory(int(sys.argv[1]))
b"".join((body, body))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    b"".join((body, body))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(limit_bytes: int) -> int:
    """Pages that the kernel had to give the process for five copies of a large body."""
    command = [sys.executable, "-c", COPY_LARGE_BODIES, str(limit_bytes)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def test_a_large_body_is_copied_into_memory_that_is_there() -> None:
    assert faults(LEAST_LIMIT_BYTES) < 100


def test_a_process_that_may_have_little_memory_keeps_none() -> None:
    assert faults(LEAST_LIMIT_BYTES - 1) > 1_000
