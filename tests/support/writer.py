"""A process to be killed: appends traffic to the embedded log, folds it, and projects it, as fast as it can.

python -m tests.support.writer DATA SEED
"""

import sys
from pathlib import Path

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.projections.replay import recover
from rewindmq.projections.store.store import StateStore
from tests.support.traffic import Traffic


def main(data: Path, seed: int) -> None:
    log = EmbeddedLog.open(data, partitions=1)
    partition = log.queues[0]
    store = StateStore.open(data / "state")
    recovery = recover(partition, store)
    machine, projector = recovery.machine, recovery.projector
    traffic = Traffic(seed, machine, projector, start_ms=machine.clock_ms, log=partition)
    print("running", flush=True)
    turn = 0
    while True:
        turn += 1
        traffic.run(20)
        batch = projector.prepare() if turn % 3 == 0 else None
        log.commit_and_wait()
        if batch is not None:
            projector.write(batch)
        if turn % 7 == 0:
            projector.persist()


main(Path(sys.argv[1]), int(sys.argv[2]))
