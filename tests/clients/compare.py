"""The same scenarios against RewindMQ and a real RabbitMQ, outcome by outcome.

    python -m tests.clients.compare             starts both, prints what differs; exit code 1 if there is anything new
    python -m tests.clients.compare NAME ...    these scenarios only, and both outcomes in full
    python -m tests.clients.compare --record    RabbitMQ's outcomes into rabbitmq-3.10.8.json, which `make test` holds
                                                RewindMQ to, so that it needs no RabbitMQ

Differences that are meant are in EXPECTED, each with its line in docs/differences.md. RabbitMQ is Debian's package
(3.10.8); RewindMQ's profile is 3.13's.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pika

from tests.bench.peers import RABBITMQ, running
from tests.clients.peer import Peer
from tests.clients.scenarios import SCENARIOS

# scenario -> the heading in docs/differences.md that says why
EXPECTED = {
    "connection loss, quorum": "x-delivery-count of 0",
    "connection loss, quorum with delivery limit": "x-delivery-count of 0",
    "negative delivery limit": "A negative x-delivery-limit",
    "single active consumer": "Not built yet",
    "rejected with copies": "The CC header",
}


RECORDED = Path(__file__).with_name("rabbitmq-3.10.8.json")


def outcomes(which: str, home: Path, names: list[str]) -> dict[str, Any]:
    with running(which, home) as broker:
        return {name: outcome(broker.port, name) for name in names}


def outcome(port: int, name: str) -> Any:
    """As JSON has it."""
    peer = Peer(pika.ConnectionParameters("127.0.0.1", port), name)
    try:
        came = SCENARIOS[name](peer)
    except Exception as error:  # an outcome like any other
        came = f"{type(error).__name__}: {error}"
    finally:
        peer.close()
    return json.loads(json.dumps(came, default=repr))


def compare(names: list[str]) -> dict[str, tuple[Any, Any]]:
    """What differs: scenario -> (RabbitMQ's outcome, RewindMQ's)."""
    home = Path(tempfile.mkdtemp(prefix="compare-"))
    try:
        theirs = outcomes("rabbitmq", home / "rabbitmq", names)
        ours = outcomes("rewindmq", home / "rewindmq", names)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return {name: (theirs[name], ours[name]) for name in names}


def main(arguments: list[str]) -> int:
    if not RABBITMQ.exists():
        print("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server", file=sys.stderr)
        return 1
    if arguments == ["--record"]:
        home = Path(tempfile.mkdtemp(prefix="compare-"))
        told = outcomes("rabbitmq", home, list(SCENARIOS))
        RECORDED.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
        return 0
    found = compare(arguments or list(SCENARIOS))
    new = 0
    for name, (theirs, ours) in found.items():
        if theirs == ours:
            print(f"same       {name}" + (f": {ours}" if arguments else ""))
            continue
        new += name not in EXPECTED
        print(f"{'expected' if name in EXPECTED else 'DIFFERENT'}  {name}\n  RabbitMQ: {theirs}\n  RewindMQ: {ours}")
    print(f"{len(found)} scenarios, {new} new differences")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
