"""Histories in which the wall clock is set forward and back, stands still, runs wrong, and is wrong at a start.

    python -m tests.simulation.clock_history 0 10000     # these seeds; prints what was met

Beside what every history is judged by (history.py, judge.py) and the audit that Spark's tasks run:
- within a life the clock of every partition's queues goes with the time that passes, to 0.05 % and a few milliseconds,
  whatever the wall clock does, also over a repair: so nothing expires early and nothing late;
- after a pause nothing is overdue;
- a life begins at the wall clock or, if that is behind, where the log had been;
- after a repair the time in the log is the wall clock's.
"""

import random
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.simulated.embedded import MemoryLog
from rewindmq.engine.partition.partition import Partition
from rewindmq.schemas.values import Actor
from tests.simulation import history
from tests.simulation.audits import audited, of_memory
from tests.simulation.clients import Clients, Step
from tests.simulation.witness import Witness
from tests.simulation.world import START_MS, World

HOUR_MS = 3_600_000
SLACK_MS = 5  # rounding of two clocks, and slewing between two looks
TICK_MS = 25  # a Tick comes at most every ten milliseconds
WEIGHTS = {
    "publish": 30,
    "settle": 16,
    "consume": 8,
    "fetch": 3,
    "credit": 3,
    "cancel": 1,
    "declare": 5,
    "delete": 1,
    "policy": 3,
    "close": 2,
    "wait": 12,
    "arm": 3,
    "crash": 3,
    "restart": 2,
    "clock": 9,
    "repair": 4,
    "disk": 1,
    "delay": 5,
}


class ClockWorld(World):
    """`loop.now` is the time that passes. The wall clock is what `set_wall` last made of it."""

    def __init__(self, seed: int, directory: Path, real_rocks: bool = False) -> None:
        super().__init__(seed, directory, real_rocks)
        self._wall_ms, self._set_at, self._rate = float(START_MS), 0.0, 1.0
        self._log_ms = 0  # the latest time in the log of the last life
        self._life = (0.0, 0)  # when it began, and the time in the log then
        self._began: dict[Partition, tuple[float, int]] = {}

    def clock(self) -> int:
        return round(self._wall_ms + (self.loop.now - self._set_at) * 1_000 * self._rate)

    def elapsed_ns(self) -> int:
        return 7_000_000_000 + round(self.loop.now * 1_000) * 1_000_000

    def set_wall(self, step_ms: int, rate: float) -> None:
        self._wall_ms, self._set_at, self._rate = float(self.clock() + step_ms), self.loop.now, rate

    def start(self) -> None:
        super().start()
        now_ms, wall_ms = self.broker.clock(), self.clock()
        latest_ms = max(wall_ms, self._log_ms)
        assert wall_ms - SLACK_MS <= now_ms <= latest_ms + SLACK_MS, f"it begins {now_ms - latest_ms} ms too late"
        self._begin()

    def _fall(self) -> None:
        """A repair may be lost with a crash: then time goes on as if there had been none."""
        began, log_ms = self._life
        unrepaired_ms = log_ms + round((self.loop.now - began) * 1_000)
        self._log_ms = max(self._log_ms, unrepaired_ms, self.broker.clock() if hasattr(self, "broker") else 0)
        super()._fall()

    def _begin(self) -> None:
        self._log_ms = self.broker.clock()
        self._life = (self.loop.now, self._log_ms)
        self._began = {each: (self.loop.now, each.now_ms()) for each in self.broker.partitions}

    def check_clocks(self) -> None:
        """Call after every step: the life that was begun goes on."""
        for partition, (began, clock_ms) in self._began.items():
            passed_ms = (self.loop.now - began) * 1_000
            drift_ms = partition.now_ms() - clock_ms - passed_ms
            assert abs(drift_ms) <= passed_ms / 2_000 + SLACK_MS, f"{drift_ms} ms in {passed_ms} ms: {partition.name}"
            assert abs(partition.log_ms() - self.broker.clock()) <= SLACK_MS
        self._log_ms = max(self._log_ms, self.broker.clock())
        assert len({each.machine.ahead_ms for each in self._began}) == 1

    def check_nothing_is_overdue(self) -> None:
        for partition in self._began:
            deadline_ms = partition.machine.deadline_ms()
            assert deadline_ms is None or deadline_ms > partition.now_ms() - TICK_MS, "a timer did not fire"


class ClockClients(Clients):
    world: ClockWorld

    def __init__(self, world: ClockWorld) -> None:
        super().__init__(world)
        self.kinds: dict[str, Any] = {**self.kinds, "repair": self.repair}

    def do(self, step: Step) -> None:
        super().do(step)
        self.world.check_clocks()

    def wait(self) -> str:
        told = super().wait()
        if not told.startswith("0.0"):
            self.world.check_nothing_is_overdue()
        return told

    def turn_clock(self) -> str:
        step_ms = self.dice.choice((5 * HOUR_MS, -5 * HOUR_MS, 5_000, -5_000, 300, -20, 0, 9_000 * HOUR_MS, -HOUR_MS))
        rate = self.dice.choice((1.0, 1.0, 1.0, 1.0, 0.0, 1.0001, 0.5, -1.0))
        self.world.set_wall(step_ms, rate)
        return f"{step_ms} ms, rate {rate}"

    def repair(self) -> str:
        before = {each: each.now_ms() for each in self.world.broker.partitions}
        watch = self.world.broker.host.clock_watch
        try:
            watch.repair(Actor("guest", 0))
        except LogError as error:
            return str(error)
        assert abs(self.world.broker.clock() - self.world.clock()) <= 1, "the time in the log is not the wall clock's"
        assert {each: each.now_ms() for each in before} == before, "the queues' clock jumped"
        return f"{self.world.broker.topology.ahead_ms} ms ahead"


def history_of(seed: int, steps: int) -> list[Step]:
    dice = random.Random(f"clock steps {seed}")
    kinds = dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps)
    return [(kind, dice.getrandbits(32)) for kind in kinds]


def check(seed: int, steps: int = history.STEPS) -> Witness:
    """Failure as `history.check`, with the shortest history that fails alike."""
    met: Counter[str] = Counter()

    def look(log: MemoryLog) -> None:
        met.update(audited(of_memory(log)))

    run = partial(history.run, seed, validate=False, look=look, worlds=ClockWorld, people=ClockClients)

    def fails(shorter: Any) -> Exception | None:
        try:
            run(shorter)
        except Exception as error:
            return error
        return None

    found = fails(history_of(seed, steps))
    if found is not None:
        shortest, why = history.shorten(history_of(seed, steps), found, fails)
        raise history.Failure(f"seed {seed}: {len(shortest)} of {steps} steps are enough") from why
    witness = run(history_of(seed, steps))
    witness.counts.update({f"audited {what}": count for what, count in met.items()})
    return witness


def main(first: int, end: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first, end):
        witness = check(seed)
        met += witness.counts + witness.ended
        if (seed + 1 - first) % 500 == 0:
            print(seed + 1 - first, "histories", flush=True)
    for what, count in sorted(met.items()):
        print(f"{count:9} {what}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
