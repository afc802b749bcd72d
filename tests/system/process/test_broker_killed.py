"""What was confirmed survives kill -9, life after life."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.broker_harness import Harness
from tests.support.running import ROOT
from tests.unit.engine.test_broker_recovery import refolded

VICTIM = """
import sys
from pathlib import Path
from tests.support.broker_harness import Client, Harness, args

h = Harness(Path(sys.argv[1]))
session = h.session()
h.declare(session, "dead")
h.declare(session, "q", args(x_max_length=500, x_dead_letter_exchange="", x_dead_letter_routing_key="dead"))
client = Client()
number = len(h.ready("q")) + len(h.ready("dead"))
while True:
    for _ in range(20):
        h.publish(session, "", "q", b"%d" % number, client)
        number += 1
    client.confirms.clear()
    h.settle()
    print(number, flush=True)
"""


def test_what_was_confirmed_survives_kill_9_and_dead_letters_come_once(tmp_path: Path) -> None:
    """Each life goes on where the one before was killed; every confirmed message is in `q` or, dead, in `dead`."""
    chance = random.Random(20261121)
    confirmed = 0
    for _ in range(4):
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(tmp_path / "data")], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        first = victim.stdout.readline()
        assert first, "the broker did not start"
        time.sleep(chance.uniform(0.05, 0.4))
        victim.send_signal(signal.SIGKILL)
        lines = [first, *victim.stdout.read().splitlines(keepends=True)]
        victim.wait()
        confirmed = int([line for line in lines if line.endswith("\n")][-1])
        with Harness(tmp_path / "data") as h:
            h.settle()
            queued, dead = h.ready("q"), h.ready("dead")
            numbers = [int(body) for body in dead + queued]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= confirmed
            assert h.digests() == refolded(tmp_path / "data")
    assert confirmed > 500
