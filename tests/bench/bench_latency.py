"""Confirm latency at 1,000 messages a second, RewindMQ and Debian's RabbitMQ in one run, in turn.

python -m tests.bench.bench_latency [--seconds 15] [--rounds 3]
"""

import argparse
import tempfile
from pathlib import Path

from tests.bench.peers import running
from tests.bench.perftest import latency, perftest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    options = ["-r", "1000", "-c", "100", "-q", "200", "-z", str(arguments.seconds)]
    for _ in range(arguments.rounds):
        for name in ("rabbitmq", "rewindmq"):
            with tempfile.TemporaryDirectory() as tmp, running(name, Path(tmp)) as broker:
                measured = latency(perftest(broker, options), "confirm")
                figures = "  ".join(f"{key} {value:6.2f} ms" for key, value in measured.items())
                print(f"confirm latency at 1,000 a second   {broker.name:18} {figures}", flush=True)


if __name__ == "__main__":
    main()
