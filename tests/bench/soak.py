"""Hours of mixed traffic against one broker process, a line each minute: does anything grow that should not?

    python -m tests.bench.soak [--hours 2] [--rate 300] [-- OPTIONS of rewindmq start]

Traffic: confirmed publishes that are consumed and acked, messages that expire into a dead-letter queue, large bodies,
clients that come and go, all listings and metrics over HTTP, and readers of the past. A bystander publishes ten small
messages a second and consumes them: its latency is what others feel. Ends with exit code 1 when a client met an error,
a message was lost, or an alarm was raised.

    rss        resident memory of the broker       held       of it for clients, by the broker's own account
    p50 ...    the bystander's latency in ms       files      open descriptors of the broker        data   its directory
"""

import argparse
import itertools
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pika

from tests.support.running import RunningBroker

MAX_HOURS = 24.0
# A read of the past folds up to a million events: ten seconds of CPU, and minutes of them on a machine that is swamped.
TIMEOUT_SECONDS = 600
PERSISTENT = pika.BasicProperties(delivery_mode=2)
LISTINGS = (
    "/api/overview",
    "/api/queues",
    "/api/connections",
    "/api/channels",
    "/api/consumers",
    "/api/nodes",
    "/metrics",
    "/metrics/per-object",
)


class Soak:
    def __init__(self, broker: RunningBroker, rate: int) -> None:
        self.broker = broker
        self.rate = rate
        self.stopping = threading.Event()
        self.errors: queue.Queue[str] = queue.Queue()
        self.latencies_ms: list[float] = []
        self.published = self.consumed = self.letters = self.connects = self.polls = self.looks_back = 0
        with self.connected() as connection:
            channel = connection.channel()
            channel.queue_declare("work", durable=True)
            channel.queue_declare("large", durable=True)
            channel.queue_declare("dead", durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_declare(
                "short",
                durable=True,
                arguments={
                    "x-message-ttl": 500,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": "dead",
                },
            )
            channel.queue_declare("bystander")
        jobs: tuple[Callable[[], None], ...] = (
            self.publish,
            self.consume,
            self.let_expire,
            self.take_letters,
            self.send_large,
            self.come_and_go,
            self.poll,
            self.look_back,
            self.stand_by,
        )
        self.threads = [threading.Thread(target=self.guarded, args=(job,), daemon=True) for job in jobs]

    def connected(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(self.broker.amqp_url))

    def guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:
            self.errors.put(f"{job.__name__}: {traceback.format_exc()}")

    def paced(self, a_second: float) -> Iterator[int]:
        """Counts, at this pace at most, until the end."""
        begin = time.monotonic()
        for number in itertools.count():
            late = time.monotonic() - begin - number / a_second
            if self.stopping.wait(max(0.0, -late)):
                return
            if late > 5:  # do not make up for what the machine could not do
                begin += late
            yield number

    # -- traffic ------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        with self.connected() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in self.paced(self.rate):
                channel.basic_publish("", "work", b"%d " % number + b"x" * (number % 2_000), PERSISTENT)
                self.published += 1

    def consume(self) -> None:
        expected = 0
        with self.connected() as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=100)
            for method, _, body in channel.consume("work", inactivity_timeout=1):
                if method is None:
                    if self.stopping.is_set() and self.consumed >= self.published:
                        return
                    continue
                number = int(body.split()[0])
                if number != expected:
                    raise AssertionError(f"message {number} came where {expected} was next")
                expected += 1
                channel.basic_ack(method.delivery_tag)
                self.consumed += 1

    def let_expire(self) -> None:
        with self.connected() as connection:
            channel = connection.channel()
            for number in self.paced(50):
                channel.basic_publish("", "short", b"%d" % number, PERSISTENT)

    def take_letters(self) -> None:
        with self.connected() as connection:
            channel = connection.channel()
            for method, _, _ in channel.consume("dead", inactivity_timeout=1):
                if self.stopping.is_set():
                    return
                if method is not None:
                    channel.basic_ack(method.delivery_tag)
                    self.letters += 1

    def send_large(self) -> None:
        body = b"x" * 2_000_000
        with self.connected() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for _ in self.paced(0.5):
                channel.basic_publish("", "large", body)
                method, _, got = channel.basic_get("large")
                if got != body:
                    raise AssertionError("a large body did not come back")
                channel.basic_ack(method.delivery_tag)

    def come_and_go(self) -> None:
        for number in self.paced(2):
            with self.connected() as connection:
                channels = [connection.channel() for _ in range(5)]
                name = f"own-{number}"
                channels[0].queue_declare(name, exclusive=True)
                channels[1].queue_bind(name, "amq.topic", f"key.{number}")
                channels[2].basic_publish("amq.topic", f"key.{number}", b"x")
                channels[3].basic_get(name, auto_ack=True)
            self.connects += 1

    def http(self) -> httpx2.Client:
        return httpx2.Client(
            base_url=self.broker.http_url, auth=("guest", "guest"), trust_env=False, timeout=TIMEOUT_SECONDS
        )

    def poll(self) -> None:
        with self.http() as client:
            for number in self.paced(2):
                client.get(LISTINGS[number % len(LISTINGS)]).raise_for_status()
                self.polls += 1

    def look_back(self) -> None:
        with self.http() as client:
            for number in self.paced(0.1):
                if number == 0:  # there is no past yet
                    continue
                moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 5))
                client.get("/api/queues/%2F/work/at", params={"time": moment}).raise_for_status()
                self.looks_back += 1

    def stand_by(self) -> None:
        with self.connected() as connection:
            channel = connection.channel()
            sent = 0.0
            for method, _, _ in channel.consume("bystander", auto_ack=True, inactivity_timeout=0.1):
                if method is not None:
                    self.latencies_ms.append((time.perf_counter() - sent) * 1_000)
                    if self.stopping.wait(0.1):
                        return
                elif sent and time.perf_counter() - sent < 30:
                    continue
                elif sent:
                    raise AssertionError("the bystander waited 30 s for a message")
                sent = time.perf_counter()
                channel.basic_publish("", "bystander", b"x")

    # -- what is shown ------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> bool:
        """Run all threads for this time, print a line a minute, and return True if all went well."""
        print(
            f"{'minute':>6} {'published':>10} {'letters':>8} {'connects':>8} {'polls':>6} {'past':>5} {'rss MB':>7}"
            f" {'held MB':>8} {'p50':>6} {'p99':>7} {'most':>7} {'files':>6} {'data MB':>8}",
            flush=True,
        )
        for thread in self.threads:
            thread.start()
        end = time.monotonic() + seconds
        minute = 0
        while time.monotonic() < end and self.errors.empty():
            minute += 1
            self.stopping.wait(min(60.0, max(0.0, end - time.monotonic())))
            self.show(minute)
        self.stopping.set()
        for thread in self.threads:
            thread.join(TIMEOUT_SECONDS)
            if thread.is_alive():
                self.errors.put(f"{thread} does not end")
        while not self.errors.empty():
            print(self.errors.get(), file=sys.stderr)
            minute = -1
        said = "".join(self.broker.errors)
        if "alarm" in said or "Traceback" in said:
            print(said, file=sys.stderr)
            minute = -1
        return minute >= 0 and self.consumed == self.published > 0

    def show(self, minute: int) -> None:
        latencies, self.latencies_ms = sorted(self.latencies_ms), []
        at = [latencies[int(len(latencies) * share)] if latencies else 0.0 for share in (0.5, 0.99)]
        pid = self.broker.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0]) / 1_000
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        data = sum(path.stat().st_size for path in list(self.broker.data.rglob("*")) if path.is_file()) / 1e6
        with self.http() as client:
            memory = client.get("/api/nodes/rewindmq@localhost/memory").json()["memory"]
        print(
            f"{minute:6} {self.published:10} {self.letters:8} {self.connects:8} {self.polls:6} {self.looks_back:5}"
            f" {resident:7.0f} {memory['total']['held'] / 1e6:8.1f} {at[0]:6.1f} {at[1]:7.1f}"
            f" {latencies[-1] if latencies else 0:7.1f} {files:6} {data:8.0f}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=300, help="publishes a second")
    parser.add_argument("options", nargs="*", help="of rewindmq start")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        broker = RunningBroker(Path(directory) / "data", *arguments.options)
        well = Soak(broker, arguments.rate).run(min(arguments.hours, MAX_HOURS) * 3_600)
        code = broker.stop()
    print("passed" if well and code == 0 else f"FAILED (the broker ended with {code})")
    return 0 if well and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
