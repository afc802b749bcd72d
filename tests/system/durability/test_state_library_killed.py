"""The library that stores the state, after its process was killed.

tests/unit/projections/test_state_library.py has everything else that is asked of it."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import ROOT, start_process
from tests.support.state_library import LIBRARIES, Library

BODY_BYTES = 40_000  # of random bytes: a memtable is full after some 100 batches
WRITER = """
import sys
from pathlib import Path
from tests.system.durability.test_state_library_killed import write
write(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
"""
BUCKETS = ("1", "2")


def write(which: int, path: Path, batches: int) -> None:
    """Write numbered batches into a database and into two buckets. Flush some in the middle, and wait for the end."""
    library = LIBRARIES[which]
    database, index = library.open(path / "state"), library.open_buckets(path / "index")
    for bucket in BUCKETS:
        index.begin(bucket)
    flushed = 0
    for number in range(batches):
        body = random.Random(number).randbytes(BODY_BYTES)
        database.write(library.batch([(b"a%06d" % number, body), (b"b%06d" % number, body), (b"n", b"%d" % number)]))
        for bucket in BUCKETS:
            index.write(bucket, [(b"a%06d" % number + body, b""), (b"b%06d" % number + body, b""), (b"n", b"")])
        if number == batches // 2:
            database.flush(True)
            index.flush(BUCKETS[0])
            flushed = number + 1
    print(flushed, flush=True)
    sys.stdin.read()


@pytest.mark.long
@pytest.mark.parametrize("which", range(len(LIBRARIES)), ids=lambda which: type(LIBRARIES[which]).__name__)
@pytest.mark.parametrize("batches", [7, 400])
def test_a_kill_leaves_a_prefix_of_the_batches_each_whole(tmp_path: Path, which: int, batches: int) -> None:
    """With all that was flushed. Of the rest memtables became files in the order in which they were written."""
    child = start_process(
        [sys.executable, "-c", WRITER, str(which), str(tmp_path), str(batches)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    flushed = int(child.stdout.readline())
    child.kill()
    child.communicate()
    library: Library = LIBRARIES[which]
    database, index = library.open(tmp_path / "state"), library.open_buckets(tmp_path / "index")
    counted = [[int(key[1:]) for key, _ in database.scan(name)] for name in (b"a", b"b")]
    kept = len(counted[0])
    assert counted[0] == counted[1] == list(range(kept))
    assert database.get(b"n") == b"%d" % (kept - 1)
    assert flushed <= kept < batches, "nothing was lost: the test says nothing about a kill"
    for bucket in BUCKETS:
        keys = index.keys(bucket)
        numbers = [[int(key[1:7]) for key in keys if key.startswith(name)] for name in (b"a", b"b")]
        assert numbers[0] == numbers[1] == list(range(len(numbers[0])))
        assert (flushed if bucket == BUCKETS[0] else 0) <= len(numbers[0]) < batches
    database.put(b"works", b"")
    database.close()
    index.close()
