"""Other people's acceptance suites against RewindMQ: `make acceptance`, or `python -m tests.acceptance.run NAME ...`.

Each suite runs against a broker of its own. What fails and is not known (`known.py`) makes the exit code 1; what is
known and passes is said. With `--rabbitmq` the broker is the RabbitMQ that is installed here: what fails there, too, is
no defect of ours. Takes half an hour, most of it aio-pika's and aiormq's.
"""

import re
import sys
import time
from pathlib import Path

from tests.acceptance import brokers
from tests.acceptance.fetching import CACHE
from tests.acceptance.known import KNOWN
from tests.acceptance.suites import SUITES, Outcome
from tests.support.running import ROOT


def judged(suite: str, came: Outcome, seconds: float) -> tuple[str, int]:
    """Prints what failed. A line for the table, and how many fail that are not known to."""
    known = KNOWN.get(suite, {})
    failed = sorted(name for name, passed in came.items() if not passed)
    why = {name: next((why for pattern, why in known.items() if re.search(pattern, name)), None) for name in failed}
    for name, reason in why.items():
        print(f"  {'known' if reason else 'FAILED'}  {name}" + (f": {reason}" if reason else ""))
    for pattern in known:
        if not any(re.search(pattern, name) for name in failed):
            print(f"  passes now: {pattern}")
    new = sum(reason is None for reason in why.values())
    passed = sum(came.values())
    return f"{suite:<14}{len(came):>7}{passed:>9}{len(failed) - new:>8}{new:>9}{seconds:>9.0f} s", new


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments if not argument.startswith("-")]
    start = brokers.rabbitmq if "--rabbitmq" in arguments else brokers.rewindmq
    CACHE.mkdir(parents=True, exist_ok=True)
    table: list[str] = []
    unknown = 0
    for suite in names or list(SUITES):
        print(suite, flush=True)
        began = time.monotonic()
        line, new = judged(suite, SUITES[suite](start), time.monotonic() - began)
        table.append(line)
        unknown += new
    print(f"\n{'suite':<14}{'tests':>7}{'pass':>9}{'known':>8}{'FAILED':>9}{'took':>11}", *table, sep="\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    assert Path.cwd() == ROOT, "run it from the checkout: python -m tests.acceptance.run"
    sys.exit(main(sys.argv[1:]))
