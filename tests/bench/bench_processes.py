"""One broker in several processes: messages a second, and what a message costs each role, beside one process.

    python -m tests.bench.bench_processes [--processes 1 2] [--pairs 8] [--seconds 10] [--rounds 3] [--build compiled]

PerfTest has so many pairs of a publisher (confirms, 200 outstanding) and a consumer (manual acks, prefetch 200), each
of a classic queue of its own, with 100-byte persistent messages. The system gives the connections to the workers. The
numbers take turns, and each round begins with new brokers. CPU of the log's process and of all workers together.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tests.bench.peers import Broker, start_rewindmq
from tests.bench.perftest import Result, perftest
from tests.support.processes import cpu_seconds_of, tree_of

OPTIONS = ["-c", "200", "-q", "200"]
US = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One run. CPU in microseconds a message; `log`: of the log's process, 0 where there is only one."""

    processes: int
    per_second: float
    log: float
    workers: float


def measured(processes: int, pairs: int, seconds: int, build: str) -> Row:
    """The row of a new broker."""
    with tempfile.TemporaryDirectory() as home:
        broker = start_rewindmq(Path(home), "--processes", str(processes), build=build)
        try:
            run(broker, pairs, min(3, seconds))
            first, others = used_by(broker)
            result = run(broker, pairs, seconds)
            then, others_then = used_by(broker)
            per_message = US / result.messages
            log, rest = (then - first) * per_message, (others_then - others) * per_message
            return (
                Row(processes, result.per_second, log, rest) if processes > 1 else Row(1, result.per_second, 0.0, log)
            )
        finally:
            broker.stop()


def run(broker: Broker, pairs: int, seconds: int) -> Result:
    """Let PerfTest publish and consume."""
    queues = ["-qp", "bench-%d", "-qpf", "1", "-qpt", str(pairs)]
    return perftest(broker, [*OPTIONS, *queues, "-z", str(seconds)], producers=pairs, consumers=pairs)


def used_by(broker: Broker) -> tuple[float, float]:
    """The CPU seconds of the first process so far, and of those below it."""
    first, *others = tree_of(broker.process.pid)
    assert first == broker.process.pid
    return cpu_seconds_of(first), sum(map(cpu_seconds_of, others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", default="", choices=["pure", "compiled"])
    asked = parser.parse_args()
    rows = []
    for _ in range(asked.rounds):
        for processes in asked.processes:
            rows.append(measured(processes, asked.pairs, asked.seconds, asked.build))
            print(rows[-1], flush=True)
    print(
        "\n| processes | messages a second | CPU a message, us: log | workers | all |\n| --- | --- | --- | --- | --- |"
    )
    for processes in asked.processes:
        own = [row for row in rows if row.processes == processes]
        rate, log, workers = (mean(getattr(row, name) for row in own) for name in ("per_second", "log", "workers"))
        print(f"| {processes} | {rate:,.0f} | {log:.1f} | {workers:.1f} | {log + workers:.1f} |")


if __name__ == "__main__":
    main()
