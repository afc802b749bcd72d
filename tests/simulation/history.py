"""A seed makes a history, a history is run and judged, a history that fails is cut until nothing more can be cut."""

import random
import shutil
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rewindmq.engine.log.simulated.embedded import MemoryLog
from tests.simulation.clients import DEAD, Clients, Step
from tests.simulation.judge import judge
from tests.simulation.witness import Witness
from tests.simulation.world import World

WEIGHTS = {
    "publish": 32,
    "settle": 20,
    "consume": 9,
    "fetch": 4,
    "credit": 4,
    "cancel": 2,
    "declare": 6,
    "delete": 2,
    "purge": 1,
    "remove": 1,
    "move": 2,
    "pause": 1,
    "bind": 4,
    "policy": 4,
    "close": 2,
    "wait": 8,
    "arm": 3,
    "crash": 2,
    "restart": 1,
    "clock": 1,
    "disk": 1,
    "delay": 5,
}
STEPS = 100
CUTS = 150  # tries at cutting a failing history, a fraction of a second each


class Failure(AssertionError):
    """A seed's failure. Its text says how to reproduce it."""


def history_of(seed: int, steps: int) -> list[Step]:
    dice = random.Random(f"steps {seed}")
    kinds = dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps)
    return [(kind, dice.getrandbits(32)) for kind in kinds]


def run(
    seed: int,
    history: Sequence[Step],
    validate: bool,
    real_rocks: bool = False,
    look: Callable[[MemoryLog], object] = lambda log: None,
    worlds: type[World] = World,
    people: type[Clients] = Clients,
) -> Witness:
    """AssertionError (or whatever the broker fails with) when something is wrong; its note tells the story. `look` is
    given the log when it was judged."""
    directory = Path(tempfile.mkdtemp(prefix="simulation-"))
    world = worlds(seed, directory, real_rocks)
    try:
        with world.running():
            world.start()
            clients = people(world)
            clients.prepare()
            for number, step in enumerate(history):
                clients.do(step)
                if validate:
                    world.validate()
                if number % 8 == 0:
                    world.claim_live()
                assert not world.defects, world.defects[0]
            clients.heal_and_drain()
            world.claim_live()
            world.stop()
            for account in judge(world.log, world.witness, DEAD, validate):
                account.count(world.witness)
            assert not world.defects, world.defects[0]
            look(world.log)
    except BaseException as error:
        error.add_note("\n".join(world.witness.trace))
        raise
    finally:
        shutil.rmtree(directory)
    return world.witness


def check(seed: int, steps: int = STEPS, validate: bool = False, real_rocks: bool = False) -> Witness:
    """Run the seed's history. Failure with the shortest history that fails alike."""
    history = history_of(seed, steps)

    def fails(shorter: Sequence[Step]) -> Exception | None:
        try:
            run(seed, shorter, validate, real_rocks)
        except Exception as error:
            return error
        return None

    try:
        return run(seed, history, validate, real_rocks)
    except Exception as error:
        shortest, why = shorten(history, error, fails)
        raise Failure(
            f"seed {seed}: python -m pytest tests/simulation --seed {seed}\n"
            f"{len(shortest)} of {steps} steps are enough; at the end is what they did.\n\n"
            + "".join(traceback.format_exception(why, chain=False))
        ) from None


def shorten(
    history: list[Step], error: Exception, fails: Callable[[Sequence[Step]], Exception | None]
) -> tuple[list[Step], Exception]:
    """Cut ever smaller pieces out of a history, as long as it goes on failing in the same place."""
    place = _place(error)
    size = len(history) // 2
    tries = 0
    while size > 0 and tries < CUTS:
        at = 0
        while at < len(history) and tries < CUTS:
            shorter = history[:at] + history[at + size :]
            tries += 1
            again = fails(shorter)
            if again is not None and _place(again) == place:
                history, error = shorter, again
            else:
                at += size
        size //= 2
    return history, error


def _place(error: Exception) -> tuple[str, str, int]:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, last.filename, last.lineno or 0
