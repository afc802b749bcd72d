"""The same scenarios against RewindMQ and a real RabbitMQ, outcome by outcome.

    python -m tests.clients.compare                  starts both, prints what differs; exit code 1 if anything is new
    python -m tests.clients.compare --profile 4.3    RabbitMQ 4.3 and RewindMQ's profile of that name
    python -m tests.clients.compare NAME ...         these scenarios only, and both outcomes in full
    python -m tests.clients.compare --record         RabbitMQ's outcomes into rabbitmq-<version>.json, which `make test`
                                                     holds RewindMQ to, so that it needs no RabbitMQ

Where RabbitMQ is not installed and can't be (brokers.py says how), RewindMQ is compared with the recorded outcomes.
Differences that are meant are in expected.py, each with its line in docs/differences.md. An outcome that is a mapping
is compared key by key: what differs is then named "scenario: key".
"""

import argparse
import json
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.peers import Broker
from tests.clients.brokers import PROFILES, ours, running, version
from tests.clients.expected import EXPECTED, reworded
from tests.clients.peer import Peer
from tests.clients.scenarios import SCENARIOS
from tests.support.debian_unstable import NotInstalled

LINE = 120  # characters of a line of a record
ABREAST = 4  # scenarios at a time: most of their time is waiting


def outcomes(broker: Broker, names: list[str]) -> dict[str, Any]:
    with ThreadPoolExecutor(ABREAST) as pool:
        return dict(zip(names, pool.map(lambda name: outcome(broker, name), names), strict=True))


def outcome(broker: Broker, name: str) -> Any:
    """As JSON has it."""
    peer = Peer(broker.port, broker.http_port, name)
    try:
        came = SCENARIOS[name](peer)
    except Exception as error:  # an outcome like any other
        came = f"{type(error).__name__}: {error}"
    finally:
        peer.close()
    return json.loads(json.dumps(came, default=repr))


def differences(name: str, theirs: Any, ours: Any) -> dict[str, tuple[Any, Any]]:
    """By name: (RabbitMQ's outcome, RewindMQ's)."""
    if theirs == ours:
        return {}
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        return {f"{name}: {key}": (theirs[key], ours[key]) for key in theirs if theirs[key] != ours[key]}
    return {name: (theirs, ours)}


def rabbitmq_outcomes(profile: str, names: list[str], recorded_will_do: bool = True) -> dict[str, Any]:
    try:
        with running(profile) as broker:
            print(f"RabbitMQ {version(broker)}", flush=True)
            return outcomes(broker, names)
    except NotInstalled as why:
        if not recorded_will_do:
            raise
        print(f"{why}\ncomparing with what RabbitMQ {PROFILES[profile].version} did when it was recorded", flush=True)
        recorded = json.loads(PROFILES[profile].recorded.read_text())
        return {name: recorded[name] for name in names}


def rewindmq_outcomes(profile: str, names: list[str]) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="compare-"))
    try:
        with ours(profile, home) as broker:
            return {name: reworded(profile, came) for name, came in outcomes(broker, names).items()}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def require_expected(profile: str, name: str, outcome: Any) -> None:
    """Require that an outcome of ours is the recorded one, but for the differences that are meant."""
    recorded = json.loads(PROFILES[profile].recorded.read_text())[name]
    found = differences(name, recorded, outcome)
    expected = {key for key in EXPECTED[profile] if key.partition(": ")[0] == name}
    for key in found.keys() - expected:
        theirs, ours = found[key]
        assert ours == theirs, key
    assert not expected - found.keys(), "no difference any more: take it out of expected.py and docs/differences.md"


def laid_out(value: Any, indent: int = 0, taken: int = 0) -> str:
    """Return JSON in which a value has one line if it fits, and otherwise a line for each of its parts.

    `taken`: the characters of the line that its name takes."""
    line = json.dumps(value, sort_keys=True)
    if not value or not isinstance(value, dict | list) or indent + taken + len(line) < LINE:
        return line
    names = [f"{json.dumps(name)}: " for name in sorted(value)] if isinstance(value, dict) else [""] * len(value)
    parts = [value[name] for name in sorted(value)] if isinstance(value, dict) else value
    begin, end = "{}" if isinstance(value, dict) else "[]"
    lines = [
        " " * (indent + 1) + name + laid_out(part, indent + 1, len(name))
        for name, part in zip(names, parts, strict=True)
    ]
    return f"{begin}\n" + ",\n".join(lines) + f"\n{' ' * indent}{end}"


def report(profile: str, names: list[str], in_full: bool) -> int:
    """Prints what differs; how many differences are new, or no more there."""
    theirs, mine = rabbitmq_outcomes(profile, names), rewindmq_outcomes(profile, names)
    expected = {key: why for key, why in EXPECTED[profile].items() if key.partition(": ")[0] in names}
    found: dict[str, tuple[Any, Any]] = {}
    for name in names:
        found |= differences(name, theirs[name], mine[name])
        if in_full and theirs[name] == mine[name]:
            print(f"same       {name}: {mine[name]}")
    for key, (their, our) in found.items():
        word = f"expected   {key} ({expected[key]})" if key in expected else f"DIFFERENT  {key}"
        print(f"{word}\n  RabbitMQ: {their}\n  RewindMQ: {our}")
    gone = expected.keys() - found.keys()
    for key in sorted(gone):
        print(f"NO MORE    {key}: take it out of expected.py and docs/differences.md")
    new = found.keys() - expected.keys()
    print(f"{len(names)} scenarios, {len(found) - len(new)} explained differences, {len(new)} new, {len(gone)} gone")
    return len(new) + len(gone)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="compare", description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=PROFILES, default="3.13")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    names = options.names or list(SCENARIOS)
    if options.record:
        recorded = PROFILES[options.profile].recorded
        before = json.loads(recorded.read_text()) if recorded.exists() else {}
        told = {name: before[name] for name in SCENARIOS if name in before}
        told |= rabbitmq_outcomes(options.profile, names, recorded_will_do=False)
        recorded.write_text(laid_out(told) + "\n")
        return 0
    return 1 if report(options.profile, names, bool(options.names)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
