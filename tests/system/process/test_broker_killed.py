"""Confirmed messages survive kill -9, life after life."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.metadata_verification import verify_metadata
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.fold_image import digest_of, image_of
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from tests.support.broker_harness import Harness
from tests.support.refolds import refolded
from tests.support.running import ROOT

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


MASS = 3_000
MASS_VICTIM = """
import sys
from pathlib import Path
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Harness, args

h = Harness(Path(sys.argv[1]))
session = h.session()
h.declare(session, "dead")
h.declare(session, "q", args(x_dead_letter_exchange="", x_dead_letter_routing_key="dead"))
for number in range(0 if h.ready("q") else int(sys.argv[2])):
    h.publish(session, "", "q", b"%d" % number)
h.settle()
h.broker.policies.set(Actor("guest", 0), "/", "p", "^q$", {"max-length": 1}, 0, "queues")
print("dropped", flush=True)
h.settle()
print(len(h.ready("dead")), flush=True)
"""


@pytest.mark.long
def test_letters_of_a_mass_that_was_dropped_survive_kill_9(tmp_path: Path) -> None:
    """They wait packed in the outbox, and go in slices. Each arrives once, in order, whenever a life ends."""
    chance = random.Random(20261129)
    data, cut_short = tmp_path / "data", 0
    for _ in range(4):
        victim = subprocess.Popen(
            [sys.executable, "-c", MASS_VICTIM, str(data), str(MASS)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        assert victim.stdout.readline() == "dropped\n"
        time.sleep(chance.uniform(0.0, 0.1))
        victim.send_signal(signal.SIGKILL)
        cut_short += not victim.stdout.read()
        victim.wait()
    assert cut_short
    with Harness(data) as h:
        h.settle()
        assert h.ready("dead") == [b"%d" % number for number in range(MASS - 1)]
        assert h.ready("q") == [b"%d" % (MASS - 1)]
        assert h.digests() == refolded(data)
    assert subprocess.run([sys.executable, "-m", "rewindmq", "verify", "--data", str(data)], cwd=ROOT).returncode == 0


BINDING_VICTIM = """
import asyncio
import sys
from pathlib import Path
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.metadata_verification import verify_metadata
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.fold_image import digest_of, image_of
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from tests.support.broker_harness import Harness

h = Harness(Path(sys.argv[1]), metadata_snapshot_events=60)
session = h.session()
number = len(h.broker.topology.bindings_in_order())
print("ready", flush=True)
while True:
    h.exchange(session, f"x{number}", "topic")
    h.broker.exchanges.bind(session, "amq.topic", "exchange", f"x{number}", "key", ())
    number += 1
    h.settle()
    h.loop.run_until_complete(asyncio.sleep(0))
"""


@pytest.mark.long
def test_a_broker_killed_while_it_writes_topology_snapshots_starts_again(tmp_path: Path) -> None:
    """Each life starts with the newest snapshot that is whole, and has the topology of the fold from the beginning."""
    chance = random.Random(20261123)
    data = tmp_path / "data"
    snapshots = Snapshots(data / "snapshots")
    begun = []
    for _ in range(5):
        victim = subprocess.Popen(
            [sys.executable, "-c", BINDING_VICTIM, str(data)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n", "the broker did not start"
        time.sleep(chance.uniform(0.2, 0.8))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        log = EmbeddedLogReader(data).metadata
        assert verify_metadata(log, snapshots).equal
        fold = MetadataFold()
        with Harness(data) as h:
            fold_on(fold, log, h.broker.metadata.state.next_offset)
            assert digest_of(image_of(h.broker.metadata.state).pieces()) == digest_of(image_of(fold).pieces())
            begun.append(h.broker.metadata.stored_offset)
        for offset in snapshots.offsets("metadata-0")[-1:]:
            snapshots.path("metadata-0", offset).unlink()  # that of the clean stop: the next life has those of before
    assert begun == sorted(begun)
    assert begun[-1] > 0, "no life wrote a snapshot"
