"""A start behind a snapshot of the topology, and what taking a snapshot costs the broker's loop.

    python -m tests.bench.bench_metadata [--events 1000000] [--behind 5000] [--bindings 1000] [--whole]

- A metadata log of so many events: temporary queues are bound and unbound, and so many bindings stay. Its snapshot is
  `--behind` events before its end. `--whole`: the start without the snapshot, too.
- A topology with a binding for each of 100,000 queues: the longest time that the loop is held up by one step (the
  image, a piece), and the time of a load.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from rewindmq.engine.embedded.metadata import SoleWriterMetadata
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.partition.snapshot_writer import MetadataSnapshots
from rewindmq.projections import system_calls
from rewindmq.projections.store import metadata_snapshots
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.fold_image import image_of
from rewindmq.projections.topology.metadata_fold import MetadataFold
from rewindmq.schemas.events import MetadataEvent
from rewindmq.schemas.metadata_events import Bound, Unbound
from rewindmq.schemas.values import BROKER
from tests.support.running import RunningBroker

QUEUES = 100_000


class NoListener:
    """Nothing depends on this topology."""

    def metadata_changed(self, event: object) -> None:
        pass


def churn(events: int, bindings: int) -> Iterator[MetadataEvent]:
    """Queues are bound, and the oldest one is unbound."""
    for number in range(events):
        queue = number if number < bindings else (number + bindings) // 2
        if number < bindings or (number - bindings) % 2 == 0:
            yield binding(queue)
        else:
            gone = binding(queue - bindings)
            yield Unbound(gone.vhost, gone.source, "exchange", gone.destination, gone.routing_key, (), gone.queue_id)


def binding(number: int) -> Bound:
    """A binding that a start leaves alone: it would remove one to a queue that is not there."""
    return Bound("/", "amq.topic", "exchange", f"amq.gen-{number:022d}", f"key.{number % 100}", (), number)


def write_history(data: Path, events: int, behind: int, bindings: int, together: int) -> None:
    """A data directory with the log and one snapshot, as a broker leaves them."""
    log = EmbeddedLog.open(data, 2, 256 * 1024 * 1024)
    metadata = SoleWriterMetadata(log.metadata, lambda: time.time_ns() // 1_000_000)
    metadata.start(NoListener())
    with patch.multiple(system_calls, sync=abs, sync_data=abs):  # the disk is not what is measured
        for number, event in enumerate(churn(events, bindings), 1):
            metadata.append_now(BROKER, event)
            if number % together == 0 or number == events - behind:
                log.commit_and_wait()
            if number == events - behind:
                MetadataSnapshots(Snapshots(data / "snapshots"), metadata, 1).take_now()
        log.close()


def start(data: Path, what: str) -> None:
    """Start a broker, and stop it. Prints the time until clients may come, and its CPU seconds."""
    began = time.monotonic()
    broker = RunningBroker(data)
    ready = time.monotonic() - began
    used = broker.cpu_seconds()
    broker.stop()
    print(f"start {what:32} {ready:6.2f} s until clients may come, {used:6.2f} CPU-s", flush=True)


def steps(data: Path) -> None:
    """Print the longest step of a snapshot of a large topology in the loop, and the time of a load."""
    fold = MetadataFold()
    for number in range(QUEUES):
        fold.apply(number, 1_700_000_000_000, BROKER, binding(number))
    took = []
    began = time.thread_time()
    image = image_of(fold)
    took.append(time.thread_time() - began)
    pieces, remaining = [], image.pieces()
    while True:
        began = time.thread_time()
        piece = next(remaining, None)
        took.append(time.thread_time() - began)
        if piece is None:
            break
        pieces.append(piece)
    began = time.process_time()
    path = metadata_snapshots.write(Snapshots(data / "snapshots"), "metadata-0", image, pieces, "")
    written = time.process_time() - began
    began = time.process_time()
    metadata_snapshots.load(path)
    loaded = time.process_time() - began
    print(
        f"{QUEUES} bindings: image {took[0] * 1000:.1f} ms, {len(pieces)} pieces,"
        f" the longest {max(took[1:]) * 1000:.1f} ms"
        f" and {sum(took) * 1000:.0f} ms together; written by a thread in {written:.2f} CPU-s,"
        f" {path.stat().st_size / 1e6:.1f} MB; loaded in {loaded:.2f} CPU-s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--behind", type=int, default=5_000)
    parser.add_argument("--bindings", type=int, default=1_000)
    parser.add_argument("--together", type=int, default=2, help="events in a group commit")
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        steps(Path(tmp) / "steps")
        data = Path(tmp) / "data"
        data.mkdir()
        asyncio.run(written(data, arguments))
        start(data, f"behind {arguments.events} events")
        start(data, "once more")
        if arguments.whole:
            shutil.rmtree(data / "snapshots")
            start(data, "without a snapshot")


async def written(data: Path, options: argparse.Namespace) -> None:
    """`write_history` in a loop, as the log needs one."""
    write_history(data, options.events, options.behind, options.bindings, options.together)


if __name__ == "__main__":
    main()
