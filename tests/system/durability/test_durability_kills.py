"""The broker is killed with SIGKILL at random moments, under load, again and again; the account must be right after it.

Nothing that was confirmed may be lost, whatever moment it was; see ledger.py for the rest. Some of the kills come while
the broker is starting. After the last restart everything is drained and judged, and `rewindmq verify` and the audit of
`spark_replay` must agree with the live state.
"""

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.running import ROOT, RunningBroker
from tests.system.durability.ledger import Ledger
from tests.system.durability.load import ACCOUNTS, CONSUMED, PARTITIONS, TARGETS, Clients

pytestmark = pytest.mark.long

KILLS = 10
MANY_KILLS = 400
OPTIONS = ("--partitions", str(PARTITIONS))


def start_and_kill(data: Path, seconds: float) -> None:
    """A start that does not get far."""
    command = [
        sys.executable,
        "-m",
        "rewindmq.engine",
        "--data",
        str(data),
        "--amqp-port",
        str(free_port()),
        "--http-port",
        str(free_port()),
        *OPTIONS,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.kill()


async def lives(data: Path, kills: int, clients: Clients) -> RunningBroker:
    """Start, run under load, kill; the last life is left running."""
    chance = random.Random(kills)
    while True:
        broker = await asyncio.to_thread(RunningBroker, data, *OPTIONS)
        assert "Traceback" not in "".join(broker.errors)
        clients.ledger.life += 1
        if clients.ledger.life == 1:
            await clients.declare(broker.amqp_url)
        clients.urls = [broker.amqp_url]
        if clients.ledger.life > kills:
            return broker
        await asyncio.sleep(chance.uniform(0.2, 1.2))
        clients.urls = []
        await asyncio.to_thread(broker.kill)
        errors = "".join(broker.errors)
        assert "Traceback" not in errors, errors
        if chance.random() < 0.15:
            await asyncio.to_thread(start_and_kill, data, chance.uniform(0.2, 1.0))


async def drained(clients: Clients, seconds: float = 60) -> None:
    """Until every confirmed message is acked and nothing comes any more."""
    ledger = clients.ledger
    deadline = time.monotonic() + seconds
    before, quiet = -1, 0
    while quiet < 10 and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        total = sum(account.delivered.total() for account in ledger.queues.values())
        quiet = quiet + 1 if total == before else 0
        before = total


async def scenario(data: Path, kills: int) -> tuple[Ledger, RunningBroker]:
    ledger = Ledger(ACCOUNTS)
    clients = Clients(ledger, kills)
    tasks = [asyncio.create_task(clients.consumer(name)) for name in CONSUMED]
    tasks += [
        asyncio.create_task(clients.publisher(number, exchange, key)) for number, (exchange, key) in enumerate(TARGETS)
    ]
    living = asyncio.create_task(lives(data, kills, clients))
    try:
        await asyncio.wait([living, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                await task  # a client that ends has failed
        broker = await living
        clients.publishing = False
        clients.orderly = True
        await drained(clients)
    finally:
        clients.ended = True
        both: tuple[asyncio.Task[RunningBroker] | asyncio.Task[None], ...] = (living, *tasks)
        for each in both:
            each.cancel()
        _, left = await asyncio.wait(both, timeout=30)
        for each in left:
            each.print_stack()
        assert not left, f"{len(left)} clients do not end"
    return ledger, broker


def run(data: Path, kills: int) -> None:
    ledger, broker = asyncio.run(scenario(data, kills))
    print(ledger.summary())
    try:
        assert ledger.judge() == [], ledger.summary()
        assert ledger.confirmed > kills * 50, "the load was no load"
        assert ledger.unknown > 0, "no kill met a publish on its way"
    finally:
        code = broker.stop()
    assert code == 0
    assert "Traceback" not in "".join(broker.errors), "".join(broker.errors)
    rewindmq = str(Path(sys.executable).with_name("rewindmq"))
    for command in ([rewindmq, "verify"], [sys.executable, "-m", "spark_replay", "audit"]):
        checked = subprocess.run([*command, "--data", str(data)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{command}: {checked.stdout[-3000:]}{checked.stderr[-3000:]}"


def test_nothing_confirmed_is_lost_by_kills(tmp_path: Path) -> None:
    run(tmp_path / "data", KILLS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_confirmed_is_lost_by_hundreds_of_kills(tmp_path: Path) -> None:
    run(tmp_path / "data", MANY_KILLS)
