"""A process that appends under load and reports the confirmed offsets. The crash test runs it and kills it.

    python -m tests.support.appender DATA_DIR SEGMENT_BYTES

Each line of its output is a partition and the offset up to which it is durable, written when the committer says so.
"""

import asyncio
import os
import sys
from pathlib import Path

from rewindmq.engine.log.embedded.log import EmbeddedLog
from tests.support.log_listener import Listener
from tests.support.records import START_MS, record


async def load(log: EmbeddedLog) -> None:
    """Append bursts of different sizes to both partitions, without end. Record n of a partition is `record(n)`."""
    reported = [-1, -1]

    def durable() -> None:
        for number, queue in enumerate(log.queues):
            if queue.durable_offset > reported[number]:
                reported[number] = queue.durable_offset
                os.write(1, f"{number} {queue.durable_offset}\n".encode())

    log.start(Listener(durable))
    os.write(1, b"ready\n")
    turn = 0
    while True:
        turn += 1
        for queue in log.queues:
            for _ in range(turn * 7 % 23):
                number = queue.next_offset
                queue.append(START_MS + number, record(number))
        log.commit()
        await asyncio.sleep(0.0005)  # a loop that never rests would hardly ever let the committer's thread have the GIL


if __name__ == "__main__":
    asyncio.run(load(EmbeddedLog.open(Path(sys.argv[1]), 2, int(sys.argv[2]))))
