"""One digest under any hash seed: Spark's workers have another than the broker."""

import os
import subprocess
import sys

from tests.support.running import ROOT


def test_one_digest_under_any_hash_seed() -> None:
    """Spark workers run under PYTHONHASHSEED=0, the broker under a random one."""
    digests = set()
    for hash_seed in ("0", "1", "4242"):
        command = [sys.executable, "-m", "tests.support.random_history", "5", "3000"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from rewindmq.projections.topology.topology import Topology\n"
        "from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared\n"
        "from rewindmq.schemas.values import BROKER\n"
        "t = Topology()\n"
        "for n in range(50):\n"
        "    t.apply(2 * n, 0, BROKER, ExchangeDeclared('/', f'x{n}', 'topic', True, False, False))\n"
        "    t.apply(2 * n + 1, 0, BROKER, Bound('/', f'x{n}', 'queue', f'q{n % 7}', 'k'))\n"
        "print(t.digest(), [b.destination for b in t.bindings('/')])\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "7777")
    }
    assert len(printed) == 1
