"""A broker whose wall clock is wrong, steps, or is set right: TTLs, the log, what is told, and the repair."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.config import Config
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.process import open_broker
from rewindmq.engine.rewind.queue_at import history_of, queue_at
from rewindmq.projections.replay import events_of
from rewindmq.projections.rewind import At
from rewindmq.schemas.clock_events import ClockSet, ClockStepped
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Harness, args
from tests.support.clocks import HOUR_MS, START_MS, Clocks
from tests.support.direct import Direct

YEAR_MS = 365 * 86_400_000


class SteppingHarness(Harness):
    """The wall clock can be set beside the time that passes."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.clocks = Clocks()
        super().__init__(data, **settings)

    def open(self, config: Config) -> Any:
        async def start() -> Direct:
            return Direct(open_broker(config, self.clocks.wall_ms, self.clocks.elapsed_ns))

        return self.loop.run_until_complete(start())

    def pass_time(self, milliseconds: int) -> None:
        """The broker looks at its clocks once a second."""
        while milliseconds > 0:
            step = min(1_000, milliseconds)
            self.clocks.run(step)
            milliseconds -= step
            if milliseconds % 1_000 == 0:
                self.in_loop(self.broker.host.clock_watch.look)
        self.in_loop(self.broker.turns.time_passed)
        self.settle()

    def off(self, milliseconds: int, wall_step_ms: int = 0) -> None:
        """A stop, so much time without a broker, and a start."""
        self.in_loop(self.broker.close)
        self.clocks.run(milliseconds)
        self.clocks.wall += wall_step_ms
        self.broker = self.open(self.config)

    def told(self) -> list[Event]:
        """Return the metadata log's events about clocks."""
        self.settle()
        blocks = self.broker.metadata._log.read()
        events = [Decoder().decode(record)[2] for block in blocks for record in block.records]
        return [event for event in events if isinstance(event, ClockStepped | ClockSet)]


@pytest.fixture
def h(tmp_path: Path) -> Any:
    with SteppingHarness(tmp_path, node="n") as harness:
        yield harness


def with_message(h: SteppingHarness, ttl_ms: int) -> None:
    session = h.session()
    h.declare(session, "q", args(x_message_ttl=ttl_ms))
    h.publish(session, "", "q", b"one")
    h.settle()


@pytest.mark.parametrize("step_ms", [5 * HOUR_MS, -5 * HOUR_MS])
def test_a_step_while_it_runs_expires_nothing_early_and_nothing_late(
    h: SteppingHarness, step_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    with_message(h, 60_000)
    h.pass_time(3_000)
    h.clocks.wall += step_ms
    h.pass_time(50_000)
    assert h.ready("q") == [b"one"]
    h.pass_time(7_100)
    assert h.ready("q") == []
    side = "ahead of" if step_ms > 0 else "behind"
    assert (
        caplog.text.count(f"is 5 h {side} the broker's time")
        + caplog.text.count(f"is 4 h 59 min {side} the broker's time")
        == 1
    )
    [stepped] = h.told()
    assert isinstance(stepped, ClockStepped)
    assert (stepped.node, stepped.noticed) == ("n", "running")
    assert stepped.wall_ms - stepped.log_ms == pytest.approx(step_ms, abs=5)
    watch = h.broker.host.clock_watch
    assert watch.difference_ms(h.broker.partitions[0]) == pytest.approx(-step_ms, abs=50)


def test_behind_the_log_at_a_start_timers_fire_all_the_same(
    h: SteppingHarness, caplog: pytest.LogCaptureFixture
) -> None:
    with_message(h, 60_000)
    h.pass_time(1_000)
    h.off(1_000, wall_step_ms=-5 * HOUR_MS)
    assert "is 4 h 59 min behind the end of the log: log time goes on from there" in caplog.text
    assert h.ready("q") == [b"one"]
    h.pass_time(58_000)
    assert h.ready("q") == [b"one"]
    h.pass_time(1_100)
    assert h.ready("q") == []
    [stepped] = h.told()
    assert isinstance(stepped, ClockStepped)
    assert (stepped.noticed, stepped.log_ms) == ("start", START_MS + 1_000)


@pytest.mark.parametrize(("off_ms", "is_told"), [(60_000, False), (86_400_000, True)])
def test_time_without_a_broker_counts_as_it_does_in_rabbitmq(
    h: SteppingHarness, off_ms: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with_message(h, 50_000)
    h.off(off_ms)
    assert h.ready("q") == []
    assert ("ahead of the end of the log" in caplog.text) == bool(h.told()) == is_told


def test_a_wrong_date_at_boot_is_repaired_and_nothing_in_a_queue_notices(h: SteppingHarness, tmp_path: Path) -> None:
    """Ten years too late for two minutes, in which a message of an hour comes. When the date is right again, it still
    has an hour; and every moment can be asked for by its right name."""
    with_message(h, 10 * YEAR_MS)
    h.pass_time(10_000)
    h.off(10_000, wall_step_ms=9 * YEAR_MS)
    session = h.session()
    h.declare(session, "hour", args(x_message_ttl=HOUR_MS))
    h.declare(session, "unused", args(x_expires=HOUR_MS))
    h.publish(session, "", "hour", b"two")
    h.pass_time(120_000)
    h.clocks.wall -= 9 * YEAR_MS
    h.pass_time(1_000)
    watch = h.broker.host.clock_watch
    right_ms = h.clocks.wall
    before_ms, after_ms = h.in_loop(lambda: watch.repair(Actor("ops", 0)))
    assert before_ms - after_ms == pytest.approx(9 * YEAR_MS, abs=5)
    assert after_ms == right_ms
    h.settle()
    assert abs(watch.difference_ms(h.broker.partitions[0])) <= 1
    h.publish(session, "", "hour", b"three")
    h.settle()
    assert (h.ready("q"), h.ready("hour")) == ([b"one"], [b"two", b"three"])

    for _ in range(2):  # also after a start
        h.pass_time(600_000)
        h.off(1_000)
        assert h.ready("hour") == [b"two", b"three"]
    assert [type(each) for each in h.told()] == [ClockStepped, ClockStepped, ClockSet]
    past = queue_at(history_of(h.config), "/", "hour", At(time_ms=right_ms + 300_000), 0, 10)
    assert [each.published.body for each in past.messages] == [b"two", b"three"]
    assert past.time_ms == right_ms + 300_000
    assert past.messages[1].published_ms == pytest.approx(right_ms, abs=5)
    expires_ms = past.messages[1].view.expires_ms
    assert expires_ms is not None
    assert expires_ms - past.ahead_ms == pytest.approx(right_ms + HOUR_MS, abs=5)
    wrong = queue_at(history_of(h.config), "/", "q", At(time_ms=START_MS + 5_000), 0, 10)
    assert len(wrong.messages) == 1

    h.pass_time(HOUR_MS - 1_200_000 - 150_000)
    assert h.ready("hour") == [b"two", b"three"]
    h.pass_time(29_000)
    assert h.ready("hour") == [b"three"]
    h.pass_time(122_000)
    assert h.ready("hour") == []
    assert h.broker.queues.get("/", "unused") is not None
    h.pass_time(1_300_000)  # a start had renewed its lease
    assert h.broker.queues.get("/", "unused") is None
    h.in_loop(h.broker.close)
    reader = EmbeddedLogReader(h.config.data)
    for log in reader.queues:  # file by file, time never goes back
        times = [each[1] for each in events_of(log)]
        for segment in log.segments():
            part = times[segment.base_offset : segment.next_offset]
            assert part == sorted(part)
    h.broker = h.open(h.config)


def test_a_repair_forward_expires_nothing(h: SteppingHarness) -> None:
    """The hardware clock had stopped: the wall clock was behind at the start, and is set right later."""
    with_message(h, 60_000)
    h.off(0, wall_step_ms=-5 * HOUR_MS)
    h.pass_time(10_000)
    h.clocks.wall += 10 * HOUR_MS
    h.pass_time(1_000)
    before_ms, after_ms = h.in_loop(lambda: h.broker.host.clock_watch.repair(Actor("ops", 0)))
    assert after_ms - before_ms == pytest.approx(5 * HOUR_MS, abs=20)
    h.pass_time(48_000)
    assert h.ready("q") == [b"one"]
    h.pass_time(1_100)
    assert h.ready("q") == []


@pytest.mark.parametrize(
    ("wall_step_ms", "survivors"),
    [
        (-9 * HOUR_MS, ("metadata-0",)),
        (-9 * HOUR_MS, ("queues-0",)),
        (-9 * HOUR_MS, ("queues-1", "metadata-0")),
        (9 * HOUR_MS, ("metadata-0",)),
        (9 * HOUR_MS, ("queues-0", "metadata-0")),  # else it was no repair, but a start
    ],
)
def test_a_crash_in_the_middle_of_a_repair_expires_nothing(
    tmp_path: Path, wall_step_ms: int, survivors: tuple[str, ...]
) -> None:
    """After the crash, the next start follows the metadata log, and in each partition the queues' clock continues."""
    with SteppingHarness(tmp_path / "a", node="n") as h:
        session = h.session()
        for number in range(8):  # in both partitions
            h.declare(session, f"q{number}", args(x_message_ttl=60_000))
            h.publish(session, "", f"q{number}", b"one")
        h.pass_time(2_000)
        h.clocks.wall += wall_step_ms
        h.settle()
        before = {
            path.relative_to(tmp_path / "a"): path.read_bytes()
            for path in (tmp_path / "a" / "log").rglob("*")
            if path.is_file()
        }
        h.in_loop(lambda: h.broker.host.clock_watch.repair(Actor("ops", 0)))
        h.settle()
        crashed = tmp_path / "crashed"
        shutil.copytree(tmp_path / "a", crashed)
        for name in {"metadata-0", "queues-0", "queues-1"} - set(survivors):
            shutil.rmtree(crashed / "log" / name)
            for path, content in before.items():
                if path.parts[1] == name:
                    (crashed / path).parent.mkdir(parents=True, exist_ok=True)
                    (crashed / path).write_bytes(content)
        shutil.rmtree(crashed / "state")
        clocks = h.clocks
    again = SteppingHarness.__new__(SteppingHarness)
    again.clocks = clocks
    again.config = Config(data=crashed, node="n")
    again.loop = asyncio.new_event_loop()
    again.broker = again.open(again.config)
    again.sequence = 0
    with again:
        assert len({each.machine.ahead_ms for each in again.broker.partitions}) == 1
        again.pass_time(57_000)
        assert [again.ready(f"q{number}") for number in range(8)] == [[b"one"]] * 8
        again.pass_time(3_200)  # at a start behind the log, time goes on from its last event
        assert [again.ready(f"q{number}") for number in range(8)] == [[]] * 8
        for partition in again.broker.partitions:
            partition.machine.validate()
