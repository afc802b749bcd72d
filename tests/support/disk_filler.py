"""A process that fills its disk and gets room again. Run as a program by the full-disk test.

    python -m tests.support.disk_filler DATA_DIR tmpfs|limit

`tmpfs`: DATA_DIR is a small file system, on which `ballast` takes most of the room and is then removed. `limit`: files
may not grow beyond a limit (RLIMIT_FSIZE), which is then raised. Appends until a commit fails, goes on appending, makes
room, and ends when all is durable. Prints the number of failures and of records as JSON.
"""

import asyncio
import json
import resource
import signal
import sys
from pathlib import Path

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded import commit
from rewindmq.engine.log.embedded.log import EmbeddedLog
from tests.support.log_listener import Listener
from tests.support.records import START_MS, record

commit.RETRY_SECONDS = 0.01


async def fill(log: EmbeddedLog, make_room: list[object]) -> None:
    failures: list[Exception] = []
    log.start(Listener(commit_failed=failures.append))
    queue = log.queues[0]
    while len(failures) < 3:
        for _ in range(10):
            number = queue.next_offset
            queue.append(START_MS + number, record(number, body_bytes=100))
        log.commit()
        await asyncio.sleep(0.001)
    refuses(log)
    assert queue.durable_offset < queue.next_offset
    for step in make_room:
        assert callable(step)
        step()
    while queue.durable_offset < queue.next_offset:
        await asyncio.sleep(0.01)
    print(json.dumps({"failures": len(failures), "records": queue.next_offset, "text": str(failures[0])}))


def refuses(log: EmbeddedLog) -> None:
    """Check that a client that waits for durability on a full disk gets an error."""
    try:
        log.commit_and_wait()
    except LogError:
        return
    raise AssertionError("the disk took it after all")


def main(data: Path, how: str) -> None:
    if how == "tmpfs":
        ballast = data / "ballast"
        ballast.write_bytes(b"\0" * 700_000)
        room: list[object] = [ballast.unlink]
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
        room = [lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))]
    log = EmbeddedLog.open(data, 1, segment_bytes=100_000 if how == "tmpfs" else 1 << 28)
    asyncio.run(fill(log, room))
    log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
