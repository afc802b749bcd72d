"""Measure the cost of archiving.

    python -m tests.bench.bench_archive [MESSAGES] [--to URL]      (200,000, and a temporary directory)

Each message has 100 bytes and is published and acked by itself, in commits of 500, 20 and 1 records. Bodies are JSON
with varying values, or random bytes, which do not compress. For each kind, the benchmark prints the CPU time a record
of a whole run of the archiver (read and verify the segment, compress, create, read back, prove, extend), the same of
`verify`, which reads everything again, and the bytes a message in the log and in the archive. Memory is the largest
that the process has had so far.
"""

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments, verify
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.projections import system_calls
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Acked, Published
from rewindmq.schemas.values import Actor, Route

START_MS = 1_763_694_000_000
ACTOR = Actor("service", 1 << 24)
PROPERTIES = bytes.fromhex("9000") + bytes([16]) + b"application/json" + b"\x02"


def json_body(chance: random.Random) -> bytes:
    origin, flight, late = chance.choice(("JFK", "LGA", "EWR")), chance.randrange(9_999), chance.randrange(-30, 300)
    text = f'{{"origin": "{origin}", "flight": {flight}, "delay": {late}, "tail": "N{chance.randrange(99_999)}"}}'
    return text.ljust(100).encode()


def random_body(chance: random.Random) -> bytes:
    return chance.randbytes(100)


BODIES: dict[str, Callable[[random.Random], bytes]] = {"json": json_body, "random": random_body}


def write_log(data: Path, messages: int, group: int, body: Callable[[random.Random], bytes]) -> None:
    """Write a log of one queue partition; each message is acked when the second one behind it is published."""
    chance, encoder = random.Random(1), Encoder()
    route = Route("/", "amq.topic", "flights.jfk", ("orders",))
    log = EmbeddedLog.open(data, 1)
    partition = log.queues[0]
    log.metadata.append(START_MS, encoder.encode(encoder.prefix(START_MS, ACTOR), Acked("/", "orders", 1, ((0, 1),))))
    out: list[int] = []
    with mock.patch.object(system_calls, "sync_data"):  # the log is written to be read
        for number in range(messages):
            now_ms = START_MS + number // 20
            prefix = encoder.prefix(now_ms, ACTOR)
            event = Published(route, PROPERTIES, persistent=True, body=body(chance), body_size=100)
            out.append(partition.append(now_ms, encoder.encode(prefix, event)))
            if len(out) > 2:
                first = out.pop(0)
                partition.append(now_ms, encoder.encode(prefix, Acked("/", "orders", 1, ((first, first),))))
            if number % max(1, group // 2) == 0:
                log.commit_and_wait()
    log.close()
    close_segments(data)


def measure(url: str, data: Path, messages: int, name: str) -> None:
    objects = open_objects(url, make=True)
    start = time.process_time()
    report = Archiver(objects, data).run()
    archived = time.process_time()
    assert all(error is None for _, error in verify(objects, "queues-0"))
    verified = time.process_time()
    of_queues = report.partitions[1]
    records = of_queues.records
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    cpu = f"{(archived - start) / records * 1e6:>12.2f} us {(verified - archived) / records * 1e6:>9.2f} us"
    sizes = f"{of_queues.segment_bytes / messages:>9.1f} {of_queues.archived_bytes / messages:>11.1f}"
    print(f"{name:>22} {records:>9} {cpu} {sizes} {peak_mb:>8.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("messages", type=int, nargs="?", default=200_000)
    parser.add_argument("--to", help="an archive, to which a name is added; else a directory")
    options = parser.parse_args()
    print("bodies, records a block   records  archive/record verify/record   raw/msg  archive/msg   memory")
    for kind, body in BODIES.items():
        for group in (500, 20, 1):
            messages = options.messages if group > 1 else options.messages // 10
            with tempfile.TemporaryDirectory() as folder:
                write_log(Path(folder) / "data", messages, group, body)
                url = f"{options.to}/{kind}-{group}-{time.time_ns()}" if options.to else f"{folder}/archive"
                measure(url, Path(folder) / "data", messages, f"{kind}, {group}")


if __name__ == "__main__":
    main()
