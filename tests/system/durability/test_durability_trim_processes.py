"""`start --processes N --keep-history` (B-22, B-67): history is trimmed beside several processes, and each may die."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.hasty_trims import DIE
from tests.support.worker_processes import WorkerProcesses
from tests.system.durability.test_durability_keep_history import HELD, KEEP, Life, begins_in_archive, body
from tests.system.process.test_worker_processes import asked, connection_at

pytestmark = pytest.mark.timeout(300)


class HastyWorkers(WorkerProcesses):
    """Several processes that trim, and die, as `HastyBroker`."""

    program = ("-m", "tests.support.hasty_trims")


class LifeOfMany(Life):
    """The life of a broker in several processes."""

    broker: HastyWorkers

    def started(self) -> HastyWorkers:
        options = ("--keep-history", KEEP, "--partitions", "1", "--segment-age", "1s", *self.options)
        return HastyWorkers(self.data, *options)

    def again(self, workers: dict[int, int]) -> None:
        """Start anew, when the first process has died and its workers have ended."""
        self.broker.kill()
        self.broker.until_ended(workers)
        self.broker = self.started()


@pytest.fixture
def life(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LifeOfMany]:
    """A life that has begun. Parameters: further options; of an archive, if there are any."""
    monkeypatch.setenv(DIE, str(tmp_path / "die"))
    options = getattr(request, "param", ())
    life = LifeOfMany(tmp_path / "data", *options, *(("--archive", str(tmp_path / "archive")) if options else ()))
    life.begin()
    yield life
    life.end()
    if life.broker.process.poll() is None:
        assert life.broker.stop() == 0
    assert not [line for line in life.broker.errors if "Traceback" in line], "".join(life.broker.errors)


def test_b22_several_processes_trim_and_any_of_them_may_die(life: LifeOfMany) -> None:
    life.trimmed_on()
    for step, who in (("appended", "broker"), ("cutting", "broker"), ("answered", "process")):
        workers = life.broker.pids()
        life.die.write_text(f"{step} {who}")
        until(lambda: not life.die.exists(), "nobody died")
        if who == "broker":
            assert life.broker.process.wait(60) == -signal.SIGKILL
            life.again(workers)
        life.trimmed_on()
    life.broker.kill_worker(1)
    life.broker.until_said("worker 1 is ready again")
    life.trimmed_on()
    floors = [asked(life.broker, port, "overview")["history"]["trims"] for port in life.broker.http_ports]
    for trims in floors:
        assert trims["keep_seconds"] == 4
        assert trims["failures"] == 1, "the process that was killed"
        [floor] = trims["floors"]
        assert (floor["partition"], floor["reason"], floor["findings"]) == ("queues-0", f"--keep-history {KEEP}", [])
    life.end()
    for number in (1, 2):
        with connection_at(life.broker, number) as connection:
            channel = connection.channel()
            found = sorted(channel.basic_get("held")[2] for _ in range(HELD))
        assert found == [body(number) for number in range(HELD)], "what is queued keeps its body"
    assert_whole(life)


@pytest.mark.parametrize("life", [("--archive-lag", "1s", "--keep-local", "300kB")], indirect=True)
def test_b22_the_archive_of_several_processes_is_trimmed_with_it(life: LifeOfMany, tmp_path: Path) -> None:
    until(lambda: begins_in_archive(life) > 0, "the archive is not trimmed")
    before = begins_in_archive(life)
    life.broker.kill_worker(1)
    life.broker.until_said("worker 1 is ready again")
    until(lambda: begins_in_archive(life) > before, "the archive is not trimmed on")
    life.end()
    assert life.held() == [body(number) for number in range(HELD)]
    assert life.broker.stop() == 0
    url, again = str(tmp_path / "archive"), tmp_path / "again"
    for command in (
        ("archive_verify", "--archive", url),
        ("archive", "--roll", "--data", str(life.data), "--to", url),
        ("recover", "--archive", url, "--data", str(again)),
    ):
        done = run(*command)
        assert done.returncode == 0, (command, done.stderr)
    life.data, life.options = again, ()
    life.broker = life.started()
    assert life.held() == [body(number) for number in range(HELD)]


def assert_whole(life: LifeOfMany) -> None:
    """The log verifies, and gives all that is queued to workers that begin with nothing."""
    assert life.broker.stop() == 0
    done = run("verify", "--data", str(life.data))
    assert done.returncode == 0, done.stderr
    for name in ("state", "snapshots", "processes"):
        shutil.rmtree(life.data / name, ignore_errors=True)
    life.broker = life.started()
    assert life.held() == [body(number) for number in range(HELD)]
