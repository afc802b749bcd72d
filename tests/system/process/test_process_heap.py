"""The memory of the process: what it keeps for the next large body (page faults are counted, not time), what it gives
back, and what it does not load."""

import subprocess
import sys

from rewindmq.engine.host.heap import KEPT_BYTES, LEAST_LIMIT_BYTES

COPY_LARGE_BODIES = f"""
import resource, sys
from rewindmq.engine.host.heap import keep_freed_memory
body = bytes({KEPT_BYTES // 4})
keep_freed_memory(int(sys.argv[1]))
b"".join((body, body))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    b"".join((body, body))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

VERIFY_PASSWORDS = f"""
import asyncio, os
from rewindmq.engine.broker.passwords import Passwords
from rewindmq.engine.host.heap import keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def verify():
    passwords = Passwords()
    password_hash = passwords.hash("right")
    keep_freed_memory({LEAST_LIMIT_BYTES})
    before = resident()
    print([*await asyncio.gather(*(passwords.verify(password_hash, each) for each in ("right", "wrong", "other")))])
    print(resident() - before)

asyncio.run(verify())
"""
COUNT_HEAPS = """
import ctypes, sys, threading
from rewindmq.engine.host.heap import share_one_heap

if sys.argv[1] == "shared":
    share_one_heap()
barrier = threading.Barrier(4)

def allocate():
    taken = bytes(1_000_000)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
ctypes.CDLL(None).malloc_stats()  # on stderr, a paragraph for each heap
"""
# What a broker without encryption, snapshots and older schemas has no use for: 17 MB.
UNUSED = "cryptography", "fastavro", "httpx2", "pyarrow", "pyspark", "rich"
IMPORT_START = f"""
import sys
import rewindmq.__main__
import rewindmq.engine.process
print([name for name in {UNUSED} if name in sys.modules])
"""


def output(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def faults(limit_bytes: int) -> int:
    """Pages that the kernel had to give the process for five copies of a large body."""
    return int(output(COPY_LARGE_BODIES, str(limit_bytes)))


def test_a_large_body_is_copied_into_memory_that_is_there() -> None:
    assert faults(LEAST_LIMIT_BYTES) < 100


def test_a_process_that_may_have_little_memory_keeps_none() -> None:
    assert faults(LEAST_LIMIT_BYTES - 1) > 1_000


def test_the_memory_that_a_login_takes_goes_back_to_the_system() -> None:
    answers, grown = output(VERIFY_PASSWORDS).splitlines()
    assert answers == "[True, False, False]"
    assert int(grown) < 5_000_000, "each of two threads takes 19 MiB meanwhile"


def test_all_threads_may_share_one_heap() -> None:
    def heaps(which: str) -> int:
        command = [sys.executable, "-c", COUNT_HEAPS, which]
        return subprocess.run(command, capture_output=True, check=True, text=True).stderr.count("Arena ")

    assert heaps("own") > heaps("shared") == 1


def test_a_broker_does_not_load_what_it_does_not_use() -> None:
    assert output(IMPORT_START) == "[]\n"
