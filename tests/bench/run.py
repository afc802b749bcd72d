"""`make bench`: RewindMQ beside other brokers in one run, and one table of it (docs/benchmarks.md).

    python -m tests.bench.run [--rows throughput million] [--peers rabbitmq rewindmq] [--quick] [--output bench.txt]

Peers take turns in each row. A peer that is not here is not run, and the table says so (`make compile`, `make
rabbitmq43`, LAVINMQ=PATH). The table is written again after each group, so that a run that is broken off leaves what it
has.
Ends with 1 if a run of a peer failed.
"""

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import report
from tests.bench.comparison import FULL, GROUPS, QUICK, Results, measured
from tests.bench.peers import PEERS


def main() -> int:
    names = list(dict.fromkeys(group.name for group in GROUPS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=names, metavar="NAME", help=f"some of: {', '.join(names)}")
    parser.add_argument("--peers", nargs="*", choices=PEERS, metavar="NAME", help=f"some of: {', '.join(PEERS)}")
    parser.add_argument("--quick", action="store_true", help="tries the harness out; figures say nothing")
    parser.add_argument("--output", type=Path, default=Path("bench.txt"))
    asked = parser.parse_args()
    scale = QUICK if asked.quick else FULL
    peers = [name for name in asked.peers or PEERS if not PEERS[name].missing()]
    versions = {name: PEERS[name].version() for name in peers}
    load, before, began = os.getloadavg()[0], report.cpu_times(), datetime.now(UTC)
    results: list[Results] = []
    for group in GROUPS:
        if asked.rows and group.name not in asked.rows:
            continue
        results.append(measured(group, peers, scale))
        spent = {name: ticks - before[name] for name, ticks in report.cpu_times().items()}
        machine = report.machine(Path(tempfile.gettempdir()), load, spent["steal"] / max(1, sum(spent.values())))
        written = report.section(began, datetime.now(UTC), machine, scale, versions, results)
        asked.output.write_text(written)
    print(f"\n{written}\nin {asked.output}")
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
