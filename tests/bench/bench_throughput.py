"""PerfTest against RewindMQ and Debian's RabbitMQ in one run, in turn, each with all cores of the machine.

python -m tests.bench.bench_throughput [--seconds 15] [--rounds 3] [--only rewindmq]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.bench.peers import running
from tests.bench.perftest import WORKLOADS, perftest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["rabbitmq", "rewindmq"])
    arguments = parser.parse_args()
    brokers = [arguments.only] if arguments.only else ["rabbitmq", "rewindmq"]
    for workload, options in WORKLOADS.items():
        wall: dict[str, list[float]] = {name: [] for name in brokers}
        cpu: dict[str, list[float]] = {name: [] for name in brokers}
        for _ in range(arguments.rounds):
            for name in brokers:
                with tempfile.TemporaryDirectory() as tmp, running(name, Path(tmp) / name) as broker:
                    result = perftest(broker, [*options, "-z", str(arguments.seconds)])
                    wall[name].append(result.per_second)
                    cpu[name].append(result.per_cpu_second)
                    print(
                        f"{workload:40} {broker.name:18} {result.per_second:9,.0f} msg/s "
                        f"{result.per_cpu_second:9,.0f} msg/CPU-s",
                        flush=True,
                    )
        if len(brokers) == 2:
            ratios = [statistics.median(m["rewindmq"]) / statistics.median(m["rabbitmq"]) for m in (wall, cpu)]
            print(f"{workload:40} RewindMQ / RabbitMQ: {ratios[0]:.2f} on the wall, {ratios[1]:.2f} per CPU second\n")


if __name__ == "__main__":
    main()
