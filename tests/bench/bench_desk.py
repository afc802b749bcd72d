"""The desk: its first paint, a step of the slider, and what a page that is open costs the broker.

    python -m tests.bench.bench_desk [--only paint,step,throughput] [--queues 2000] [--events 10000000] [--history DIR]
        [--rounds 5] [--seconds 10] [--no-waypoints]

- paint: Chromium opens the list of the queues; milliseconds from the navigation until its rows are there. The user is
  logged in. The first time is with an empty cache, and stands beside the median.
- step: a history of so many events in one partition, with a snapshot every 1,000,000 and waypoints between them, as a
  broker leaves them (`--no-waypoints`: snapshots alone). Over HTTP, as the page asks: random moments of the whole
  history, which nobody has looked at; the chart of the whole history, then random moments in it; then a moment far from
  all that was read, and random moments near it. Seconds on the wall, and CPU of the broker with its processes.
- throughput: PerfTest with confirms and manual acks, without a page and with one of the queue open in Chromium, in
  turn. Messages a second, and a broker-CPU-second; the ratio of the medians. Chromium is on the same machine.

`--history`: a directory of a former run; it is made if it is not there. To make it takes some minutes of CPU.
"""

import argparse
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from unittest.mock import patch

import httpx2
from playwright.sync_api import Page, sync_playwright

from rewindmq.engine.config import Config
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.partition.waypoint_writer import MOST_FILES
from rewindmq.projections import system_calls
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.snapshots import Snapshots, state_of, waypoint_metadata
from tests.bench.bench_archived_past import EVERY, drive_to
from tests.bench.generated_history import START_MS, write_history
from tests.bench.peers import PEERS, Broker, start_rewindmq
from tests.bench.perftest import perftest
from tests.support.browser import give
from tests.support.needs import found

AUTH = ("guest", "guest")
ACKED = ["-c", "500", "-q", "200", "-qa", "x-queue-type=classic"]
QUEUE = "hot"  # of the generated history
STEPS = 60


@contextlib.contextmanager
def opened(broker: Broker) -> Iterator[Page]:
    """A page of Chromium in which guest is logged in."""
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found("chromium"), args=options)
        page = chromium.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"http://127.0.0.1:{broker.http_port}/")
        give(page, *AUTH)
        page.get_by_role("button", name="Log out").wait_for()
        yield page
        chromium.close()


def paint(home: Path, queues: int, rounds: int) -> None:
    """Print how long the list of the queues takes."""
    named = [
        {"name": f"q{n}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}} for n in range(queues)
    ]
    with PEERS["rewindmq"].running(home) as broker:
        url = f"http://127.0.0.1:{broker.http_port}"
        httpx2.post(f"{url}/api/definitions", auth=AUTH, content=json.dumps({"queues": named}), timeout=600)
        with opened(broker) as page:
            took, cpu = [], []
            for _ in range(rounds + 1):
                page.goto("about:blank")
                before = broker.cpu_seconds()
                page.goto(f"{url}/#/queues")
                page.locator("tbody tr").first.wait_for()
                took.append(page.evaluate("performance.now()"))
                cpu.append((broker.cpu_seconds() - before) * 1_000)
    print(
        f"paint, {queues} queues: {median(took[1:]):.0f} ms (the first time {took[0]:.0f}),"
        f" broker CPU {median(cpu[1:]):.0f} ms",
        flush=True,
    )


def make(data: Path, events: int, waypoints: bool) -> None:
    """Make the history, with the snapshots and waypoints that a broker leaves."""
    with patch.multiple(system_calls, sync=lambda descriptor: None, sync_data=lambda descriptor: None):
        write_history(data, events)
        partition = EmbeddedLogReader(data).queues[0]
        machine = Machine(partition.name)
        snapshots, apart = Snapshots(data / "snapshots"), Config(data).waypoint_events
        for end in range(apart, events + 1, apart):
            drive_to(machine, partition, end)
            if end % EVERY == 0:
                snapshots.take(machine)
            elif waypoints and end > events - MOST_FILES * apart:
                snapshots.leave_waypoint(machine.partition, end, waypoint_metadata(machine), state_of(machine))


class Steps:
    """Questions about moments, as the page asks them."""

    def __init__(self, broker: Broker, api: httpx2.Client) -> None:
        self.broker = broker
        self.api = api

    def ask(self, path: str, **query: object) -> tuple[dict[str, object], float, float]:
        """The answer, with its seconds and CPU seconds."""
        cpu, began = self.broker.cpu_seconds(), time.perf_counter()
        answer = self.api.get(path, params={name: str(value) for name, value in query.items()})
        answer.raise_for_status()
        return answer.json(), time.perf_counter() - began, self.broker.cpu_seconds() - cpu

    def at(self, offset: int) -> tuple[float, float]:
        return self.ask(f"/queues/%2F/{QUEUE}/at", offset=offset, count=20)[1:]

    def some(self, what: str, begin: int, end: int) -> None:
        """Print what random moments of this range take."""
        dice = random.Random(1)
        took = [self.at(dice.randrange(begin, end)) for _ in range(STEPS)]
        seconds, cpu = sorted(each[0] for each in took), [each[1] for each in took]
        print(
            f"step, {what}: median {median(seconds) * 1_000:.0f} ms, nine of ten below"
            f" {seconds[STEPS * 9 // 10] * 1_000:.0f} ms, CPU {median(cpu) * 1_000:.0f} ms",
            flush=True,
        )


def step(home: Path, events: int, waypoints: bool) -> None:
    """Print what steps of the slider take."""
    if not (home / "data" / "log").exists():
        make(home / "data", events, waypoints)
    broker = start_rewindmq(home, seconds=1_800)  # the first start folds all of it
    try:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{broker.http_port}/api", auth=AUTH, timeout=120, trust_env=False
        ) as api:
            steps = Steps(broker, api)
            steps.at(10)  # the process that reads the past is started
            if waypoints:
                steps.some("the first visit of moments everywhere", 10, events)
            end_ms = START_MS + events // 20
            chart, seconds, cpu = steps.ask(f"/history/depth/%2F/{QUEUE}", **{"from": START_MS, "to": end_ms})
            reached = int(chart["to"]["offset"])  # type: ignore[index]
            whole = "whole" if chart["complete"] else "up to its time limit"
            print(f"step, the chart, {whole}: {reached:,} events in {seconds:.1f} s, CPU {cpu:.1f} s", flush=True)
            steps.some("moments in the chart", 10, reached)
            if reached < events - EVERY:
                begin = (events // EVERY - 1) * EVERY
                seconds, cpu = steps.at(events - 1)
                print(f"step, the first one far away: {seconds * 1_000:.0f} ms, CPU {cpu * 1_000:.0f} ms", flush=True)
                steps.some("moments near it", begin, events)
    finally:
        broker.stop()


def throughput(home: Path, rounds: int, seconds: int) -> None:
    """Print what the broker does with a page open and without, in turn."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with PEERS["rewindmq"].running(home) as broker:
        perftest(broker, [*ACKED, "-z", "5"])
        for turn in range(rounds):
            for beside in (False, True) if turn % 2 == 0 else (True, False):
                with contextlib.ExitStack() as stack:
                    if beside:
                        page = stack.enter_context(opened(broker))
                        page.goto(f"http://127.0.0.1:{broker.http_port}/#/queues/%2F/bench")
                        page.locator(".chart").wait_for()
                    result = perftest(broker, [*ACKED, "-z", str(seconds)])
                found[beside].append((result.per_second, result.per_cpu_second))
                print(
                    f"throughput, page {'open' if beside else 'shut'}: {result.per_second:,.0f} msg/s,"
                    f" {result.per_cpu_second:,.0f} msg/CPU-s",
                    flush=True,
                )
    wall, cpu = (median(each[at] for each in found[True]) / median(each[at] for each in found[False]) for at in (0, 1))
    print(f"throughput, open / shut: {wall:.2f} of the messages a second, {cpu:.2f} a broker-CPU-second", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="paint,step,throughput")
    parser.add_argument("--queues", type=int, default=2_000)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--history", type=Path)
    parser.add_argument("--no-waypoints", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        kinds = asked.only.split(",")
        if "paint" in kinds:
            paint(Path(home) / "paint", asked.queues, asked.rounds)
        if "step" in kinds:
            step(asked.history or Path(home) / "history", asked.events, not asked.no_waypoints)
        if "throughput" in kinds:
            throughput(Path(home) / "throughput", asked.rounds, asked.seconds)


if __name__ == "__main__":
    main()
