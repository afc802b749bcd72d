"""Other people's acceptance suites against RewindMQ, each against a broker of its own.

    python -m tests.acceptance.run                        every suite: an hour and a half
    python -m tests.acceptance.run --list                 their names, what they run, what they need
    python -m tests.acceptance.run kombu java             these suites
    python -m tests.acceptance.run java --tests 'TopicPermissions#*'    one of its tests, as its own runner names it
    python -m tests.acceptance.run java --tests QosTests -- --partitions 1        with options of `rewindmq start`
    python -m tests.acceptance.run kombu --rabbitmq       against the RabbitMQ of this machine: what fails there, too,
                                                          is no defect of ours

Suites are fetched from where their authors publish them into the user's cache, and what a suite prints is kept there.
Failures that are known, each with its reason, are in known.py. The exit status is 1 if a test fails that is not known,
if a known failure is gone, or if a suite could not be run to its end.
"""

import argparse
import re
import sys
import time
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.acceptance import brokers
from tests.acceptance.fetching import CACHE
from tests.acceptance.known import KNOWN
from tests.acceptance.request import NotRun, Outcome, Request
from tests.acceptance.suites import SUITES
from tests.bench.peers import RABBITMQ
from tests.support.running import ROOT

LIMIT_MINUTES = 60.0  # for one suite: the longest takes 15 to 20 on a busy machine
HEAD = f"{'suite':<16}{'version':<10}{'tests':>6}{'passed':>8}{'known':>7}{'FAILED':>8}{'gone':>6}{'minutes':>9}"


@dataclass
class Judgement:
    """`failed`, `known`: tests that do not pass. `gone`: patterns of known failures that none of the tests shows."""

    version: str
    passed: int
    known: dict[str, str]
    failed: list[str]
    gone: list[str]

    @property
    def is_good(self) -> bool:
        return not self.failed and not self.gone

    def print(self) -> None:
        for name, reason in self.known.items():
            print(f"  known   {name}: {reason}")
        for name in self.failed:
            print(f"  FAILED  {name}")
        for pattern in self.gone:
            print(f"  GONE    {pattern}: take it out of known.py and docs/acceptance.md")

    def line(self, suite: str, seconds: float) -> str:
        tests = self.passed + len(self.known) + len(self.failed)
        counts = f"{tests:>6}{self.passed:>8}{len(self.known):>7}{len(self.failed):>8}{len(self.gone):>6}"
        return f"{suite:<16}{self.version:<10}{counts}{seconds / 60:>9.1f}"


def judged(suite: str, outcome: Outcome, whole: bool) -> Judgement:
    """`whole`: all of the suite's tests were asked for, so a known failure that names none of them is gone, too."""
    entries = KNOWN.get(suite, ())
    judgement = Judgement(outcome.version, sum(outcome.tests.values()), {}, [], [])
    for name in sorted(name for name, passed in outcome.tests.items() if not passed):
        entry = next((entry for entry in entries if re.search(entry.tests, name)), None)
        if entry is None:
            judgement.failed.append(name)
        else:
            judgement.known[name] = entry.reason
    for entry in entries:
        passes = [passed for name, passed in outcome.tests.items() if re.search(entry.tests, name)]
        if (all(passes) and not entry.now_and_then and bool(passes)) or (whole and not passes):
            judgement.gone.append(entry.tests)
    return judgement


def run(suite: str, options: argparse.Namespace) -> tuple[str, bool]:
    """The suite's line of the table, and whether all is well."""
    print(suite, flush=True)
    began = time.monotonic()
    start = brokers.rabbitmq if options.rabbitmq else partial(brokers.rewindmq, options=options.broker)
    output = CACHE / "output" / (f"{suite}-rabbitmq" if options.rabbitmq else suite)
    request = Request(start, options.tests, output, options.minutes * 60)
    try:
        SUITES[suite].check()
        outcome = SUITES[suite].run(request)
    except NotRun as why:
        print(f"  NOT RUN {why}", flush=True)
        return f"{suite:<16}not run: {str(why).splitlines()[0]}", False
    except Exception as error:  # of a broker or of a package's installation: the other suites are run all the same
        traceback.print_exc()
        return f"{suite:<16}not run: {type(error).__name__}, see above", False
    judgement = judged(suite, outcome, whole=options.tests is None)
    if options.rabbitmq:
        judgement.gone.clear()  # they are known of ours
    judgement.print()
    print(f"  {judgement.passed} of {len(outcome.tests)} passed", flush=True)
    return judgement.line(suite, time.monotonic() - began), judgement.is_good


def listed() -> str:
    lines = [f"  {name:<16}{suite.what:<50}{suite.needs}".rstrip() for name, suite in SUITES.items()]
    return "\n".join((f"  {'suite':<16}{'what is run':<50}needs, beside Python", *lines))


def parser() -> argparse.ArgumentParser:
    described, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.run",
        usage="%(prog)s [OPTION ...] [SUITE ...] [-- OPTION of rewindmq start ...]",
        description=described,
        epilog=f"{rest}\n{listed()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="which are run; none: all")
    parser.add_argument("--list", action="store_true", help="print the suites and what they need, and end")
    parser.add_argument("--rabbitmq", action="store_true", help="against the RabbitMQ of this machine")
    parser.add_argument("--tests", metavar="PATTERN", help="of one suite, as its runner takes it (pytest -k, go -run)")
    parser.add_argument("--minutes", type=float, default=LIMIT_MINUTES, help="limit for each suite (%(default)g)")
    return parser


def main(arguments: list[str]) -> int:
    asked = parser()
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = asked.parse_args(arguments[:at], argparse.Namespace(broker=arguments[at + 1 :]))
    if options.list:
        print(listed())
        return 0
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        asked.error(f"no suite is named {', '.join(unknown)}; there are {', '.join(SUITES)}")
    if options.tests is not None and len(options.suites) != 1:
        asked.error("--tests names tests of one suite: name the suite")
    if options.rabbitmq and options.broker:
        asked.error("what follows -- are options of rewindmq start: RabbitMQ does not know them")
    if options.rabbitmq and not RABBITMQ.exists():
        asked.error("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    CACHE.mkdir(parents=True, exist_ok=True)
    came = [run(suite, options) for suite in options.suites or SUITES]
    print("", HEAD, *(line for line, _ in came), sep="\n")
    return 0 if all(good for _, good in came) else 1


if __name__ == "__main__":
    assert Path.cwd() == ROOT, "run it from the checkout: python -m tests.acceptance.run"
    sys.exit(main(sys.argv[1:]))
