"""The log in Kafka by itself: 200-byte records appended and read back through a Kafka of one node on this machine.

python -m tests.bench.bench_kafka_log [--seconds 5] [--set linger.ms=1] ...
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.engine.log.shared_contract import Arrived
from tests.support.kafka.cluster import KafkaCluster

RECORD_BYTES = 200
RECORDS = 300_000
# So many may be on their way: publishers are held up beyond that.
UNDER_WAY = 20_000


class Bench:
    """One run. A record begins with the time at which it was appended."""

    def __init__(self, log: KafkaLog) -> None:
        self.log = log
        self.count = 0
        self.latencies: list[int] = []
        log.follow({partition.name: partition.next_offset for partition in (log.metadata, *log.queues)}, self)

    def trouble(self, why: str | None) -> None:
        raise RuntimeError(why)

    def fail(self, error: Exception) -> None:
        raise error

    def delivered(self, name: str, offsets: list[int]) -> None:
        raise AssertionError("no partition is paused here")

    def duties_changed(self, names: frozenset[str]) -> None:
        """None of them is carried out here."""

    def arrived(self, batches: list[Arrived]) -> None:
        now = time.perf_counter_ns()
        for batch in batches:
            self.count += len(batch.values)
            self.latencies += [now - int.from_bytes(value[:8], "big") for value in batch.values]

    def append(self, number: int, padding: bytes) -> None:
        value = time.perf_counter_ns().to_bytes(8, "big") + padding
        self.log.queues[number % 2].append(b"/bench", value)

    async def as_fast_as_it_goes(self, turn: int) -> None:
        padding = os.urandom(RECORD_BYTES - 8)
        for start in range(0, RECORDS, turn):
            for _ in range(turn):
                self.append(start // turn, padding)
            self.log.flush()
            await asyncio.sleep(0)
            while start - self.count > UNDER_WAY:
                await asyncio.sleep(0.0005)
        while self.count < RECORDS:
            await asyncio.sleep(0.0005)

    async def at_a_rate(self, rate: int, seconds: float) -> None:
        padding = os.urandom(RECORD_BYTES - 8)
        began, number = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            while number < elapsed * rate:
                self.append(number, padding)
                number += 1
            self.log.flush()
            await asyncio.sleep(0.001)
        while self.count < number:
            await asyncio.sleep(0.001)


async def measured(name: str, log: KafkaLog, turn: int, rate: int, seconds: float) -> None:
    bench = Bench(log)
    await asyncio.sleep(0.5)  # clients connect
    began, cpu = time.perf_counter(), time.process_time()
    await (bench.as_fast_as_it_goes(turn) if turn else bench.at_a_rate(rate, seconds))
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    bench.latencies.sort()
    p50, p99 = (bench.latencies[len(bench.latencies) * share // 100] / 1e6 for share in (50, 99))
    print(
        f"{name:36} {bench.count / elapsed:9,.0f} a second   {cpu / bench.count * 1e6:7.1f} us of CPU each"
        f"   back after p50 {p50:6.2f} ms, p99 {p99:6.2f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of librdkafka")
    arguments = parser.parse_args()
    settings = dict(each.split("=", 1) for each in arguments.set)
    runs = [
        ("as fast as it goes, 10 in a turn", 10, 0),
        ("as fast as it goes, 100 in a turn", 100, 0),
        ("100 a second", 0, 100),
        ("1,000 a second", 0, 1_000),
        ("20,000 a second", 0, 20_000),
    ]
    with tempfile.TemporaryDirectory() as directory, KafkaCluster(Path(directory)) as kafka:
        for name, turn, rate in runs:
            log = KafkaLog.open(kafka.bootstrap, "bench", settings=settings)
            asyncio.run(measured(name, log, turn, rate, arguments.seconds))
            log.close()


if __name__ == "__main__":
    main()
