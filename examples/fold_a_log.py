"""Fold a log in twenty lines: it shows what is in the queues, from the files alone. No broker runs, nothing is written.

python examples/fold_a_log.py DATA              DATA is the directory of `rewindmq start --data DATA`
"""

import sys
from pathlib import Path

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold


def main(data: str) -> None:
    log = EmbeddedLogReader(Path(data))
    for partition in log.queues:
        machine = Machine(partition.name)
        fold(machine, partition)  # every event of the partition, in order
        for queue in machine.queues():
            ready, unacked = queue.messages_ready, queue.messages_unacked
            print(f"{queue.vhost} {queue.name}: {ready} ready, {unacked} unacked, {queue.published} ever published")


if __name__ == "__main__":
    main(*sys.argv[1:])
