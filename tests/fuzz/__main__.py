"""A broker, all that a hostile client can think of, and one who behaves:

    python -m tests.fuzz [--frames 1000000] [--requests 200000] [--seconds 7200] [--seed 0]

AMQP frames and HTTP requests go to a real broker on loopback at the same time. It ends by itself, with a table: what
was answered, the latency of the bystander, the broker's memory. Exit code 1 when the broker met a defect of its own (a
541, a 500, a traceback on stderr), when it ended, or when it left a request or the bystander without an answer.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests.fuzz import requests_sent, streams_sent
from tests.fuzz.bystander import CALM
from tests.support.running import ROOT, RunningBroker, start_process

AMQP_CLIENTS = 8
HTTP_CLIENTS = 4
CLEAN_SECONDS = 10
BYSTANDER_SECONDS = 30
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \[\w+\] ")


@dataclass(slots=True)
class Result:
    """`defects`: each in words."""

    told: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    rss_mib: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        codes = ", ".join(f"{name} {count}" for name, count in sorted(self.told.items()))
        ms = sorted(self.latencies_ms) or [0.0]
        at = [ms[min(len(ms) - 1, int(len(ms) * share))] for share in (0.5, 0.99, 1.0)]
        rss = self.rss_mib or [0]
        return "\n".join(
            (
                f"{self.seconds:.0f} s; answered: {codes}",
                f"bystander: {len(self.latencies_ms)} messages; milliseconds from publish to delivery: p50 {at[0]:.1f},"
                f" p99 {at[1]:.1f}, max {at[2]:.1f}",
                f"broker's memory in MiB: {rss[0]} at first, {rss[len(rss) // 2]} in the middle, {rss[-1]} at last,"
                f" {max(rss)} at most",
                *(f"DEFECT {each[:3_000]}" for each in dict.fromkeys(self.defects[:20])),
                f"{len(self.defects)} defects",
            )
        )


async def fuzz(data: Path, frames: int, requests: int, seconds: float, seed: int) -> Result:
    """Of as many frames and requests as come in so many seconds."""
    result = Result()
    broker = RunningBroker(data, "--log-level", "warning")
    try:
        with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), timeout=60) as api:
            prepare(api)
        bystander = start_process(
            [sys.executable, "-m", "tests.fuzz.bystander", str(broker.amqp_port)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        began = time.monotonic()
        attacks = [
            asyncio.ensure_future(
                streams_sent.attack(
                    broker.amqp_port, seed + number, frames // AMQP_CLIENTS, result.told, result.defects
                )
            )
            for number in range(AMQP_CLIENTS)
        ] + [
            asyncio.ensure_future(
                requests_sent.attack(
                    broker.http_port, seed + number, requests // HTTP_CLIENTS, result.told, result.defects
                )
            )
            for number in range(HTTP_CLIENTS)
        ]
        watching = asyncio.ensure_future(watch(broker, result))
        _, late = await asyncio.wait(attacks, timeout=seconds)
        for task in (*late, watching):
            task.cancel()
        ends = await asyncio.gather(*attacks, watching, return_exceptions=True)
        result.seconds = time.monotonic() - began
        result.defects += [f"a client ended: {end!r}" for end in ends if isinstance(end, Exception)]
        result.latencies_ms = heard(bystander, result.defects)
        judge(broker, result)
    finally:
        code = broker.stop()
    if code:
        result.defects.append(f"the broker's exit code is {code}")
    return result


def prepare(api: httpx2.Client) -> None:
    """Vhosts and users of their own for those who fuzz and for the one who does not."""
    for name, tags in ((CALM, ""), (requests_sent.USER, "administrator")):
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        api.put(f"/vhosts/{name}", json={}).raise_for_status()
        api.put(f"/users/{name}", json={"password": name, "tags": tags}).raise_for_status()
        api.put(f"/permissions/{name}/{name}", json=everything).raise_for_status()


async def watch(broker: RunningBroker, result: Result) -> None:
    """Its memory, every second. What was declared goes now and then, so that a long run does not grow by it."""
    async with httpx2.AsyncClient(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), timeout=60) as api:
        for second in range(1, 1_000_000):
            await asyncio.sleep(1)
            status = Path(f"/proc/{broker.process.pid}/status")
            found = re.search(r"VmRSS:\s+(\d+)", status.read_text()) if status.exists() else None
            result.rss_mib.append(int(found[1]) // 1024 if found else 0)
            for name in ("a", "quorum", "stream"):
                arguments = {} if name == "a" else {"x-queue-type": name}
                await api.put(f"/queues/{requests_sent.VHOST}/{name}", json={"durable": True, "arguments": arguments})
            if second % CLEAN_SECONDS == 0:
                for each in (await api.get("/queues/%2F?columns=name")).json():
                    await api.delete(f"/queues/%2F/{quoted(each['name'])}")


def quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


def heard(bystander: "subprocess.Popen[str]", defects: list[str]) -> list[float]:
    try:
        said, errors = bystander.communicate("", timeout=BYSTANDER_SECONDS)
    except subprocess.TimeoutExpired:
        bystander.kill()
        said, errors = bystander.communicate()
    if bystander.returncode:
        defects.append(f"the bystander ended with {bystander.returncode}: {errors[-2_000:]}")
        return []
    found: list[float] = json.loads(said)
    return found


def judge(broker: RunningBroker, result: Result) -> None:
    """Report as defects that the broker has ended or answered late, and each traceback that it wrote to stderr."""
    if broker.process.poll() is not None:
        result.defects.append(f"the broker ended with {broker.process.returncode}")
    if result.told["late"]:
        result.defects.append(f"{result.told['late']} requests were not answered in {requests_sent.ANSWER_SECONDS} s")
    block: list[str] = []
    for line in [*broker.errors, "2026-11-22T00:00:00.000Z [end] "]:
        if LINE.match(line):
            if len(block) > 1:
                places = [each.strip() for each in block if each.lstrip().startswith("File")][-3:]
                result.defects.append("\n  ".join(("on stderr:", block[0].strip()[25:125], *places, block[-1].strip())))
            block = []
        if line.strip():
            block.append(line)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--frames", type=int, default=1_000_000, help="of AMQP, at the least, unless the time is over")
    parser.add_argument("--requests", type=int, default=200_000, help="over HTTP")
    parser.add_argument("--seconds", type=float, default=7_200, help="after which it ends")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = asyncio.run(
            fuzz(Path(directory) / "data", options.frames, options.requests, options.seconds, options.seed)
        )
    print(result.table())
    return 1 if result.defects else 0


if __name__ == "__main__":
    sys.exit(main())
