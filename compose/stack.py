"""Run the services of compose.yaml as plain processes on the loopback address: `make stack`.

    python compose/stack.py up [--data DIR] [--amqp-port N] [--http-port N] [--kafka-port N]     until Ctrl-C or `stop`
    python compose/stack.py stop [--data DIR]

    DIR/kafka/        three brokers of Kafka, replication 3            (Maven fetches Kafka once)
    DIR/rewindmq-1/   two nodes of RewindMQ on that Kafka
    DIR/audit/        Spark's audit, which follows the history: reports.jsonl has a line for each batch
    DIR/*.log         the output of each process

Rules of this file
- Each child has its own session, so Ctrl-C reaches this process alone. This process then ends the children in order:
  Spark, the nodes, Kafka. If this process is killed, Linux kills its children.
- A second start finds the data of the first. An operator may delete DIR while nothing runs.
"""

import argparse
import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

NODES = (1, 2)
KAFKA_PORTS = 4 * 3  # each of three brokers takes four (tests/support/kafka/cluster.py)
START_SECONDS = 180  # Maven may have to fetch Kafka first
STOP_SECONDS = 60
UNAVAILABLE = 69
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """The stack cannot start, or a process of it ended."""


class Stopped(Exception):
    """This process got SIGINT or SIGTERM."""


class Stack:
    """The processes, in the order of their start."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.data: Path = options.data.absolute()
        self.amqp_ports = [options.amqp_port + node - 1 for node in NODES]
        self.http_ports = [options.http_port + node - 1 for node in NODES]
        self.kafka_port: int = options.kafka_port
        self.bootstrap = ",".join(f"127.0.0.1:{self.kafka_port + broker}" for broker in range(3))
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all processes and print their addresses. Failure: a port is taken, or a process does not start."""
        kafka_ports = range(self.kafka_port, self.kafka_port + KAFKA_PORTS)
        for port in (*self.amqp_ports, *self.http_ports, *kafka_ports):
            require_free(port)
        say("starting three brokers of Kafka ...")
        self._run(
            "kafka",
            "-m",
            "tests.support.kafka.cluster",
            str(self.data / "kafka"),
            "--nodes",
            "3",
            "--first-port",
            str(self.kafka_port),
            until_ready=True,
        )
        say("starting two nodes of RewindMQ ...")
        for node, amqp_port, http_port in zip(NODES, self.amqp_ports, self.http_ports, strict=True):
            name = f"rewindmq-{node}"
            self._run(
                name,
                "-m",
                "rewindmq.engine",
                "--data",
                str(self.data / name),
                "--node",
                name,
                "--kafka",
                self.bootstrap,
                "--amqp-port",
                str(amqp_port),
                "--http-port",
                str(http_port),
                until_ready=True,
            )
        say("starting Spark's audit ...")
        from tests.support.spark.connector import make_connectors_known

        make_connectors_known()
        self._run(
            "spark",
            "-m",
            "spark_replay",
            "watch",
            "--kafka",
            self.bootstrap,
            "--checkpoint",
            str(self.data / "audit"),
            "--interval",
            "5",
        )
        self._print_addresses()

    def stay(self) -> None:
        """Wait for a signal. Failure: a process ended by itself."""
        while True:
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise Failure(f"{name} ended with {process.returncode}: {self._end_of(name)}")
            time.sleep(0.5)

    def stop(self) -> None:
        """End the processes, the last one first."""
        for name, process in reversed(self.running.items()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    say(f"{name} does not stop, so it is killed now")
                    process.kill()
                    process.wait()

    def _run(self, name: str, *arguments: str, until_ready: bool = False) -> None:
        """Start a process.

        `until_ready`: wait for the line on its stdout that says that it is ready."""
        with (self.data / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
                stdout=subprocess.PIPE if until_ready else log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.running[name] = process
        if until_ready:
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
            if not readable or not process.stdout.readline():
                raise Failure(f"{name} did not start: {self._end_of(name)}")

    def _end_of(self, name: str) -> str:
        lines = (self.data / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else ''} ({self.data / name}.log)"

    def _print_addresses(self) -> None:
        rewindmq = f"{os.path.relpath(Path(sys.executable).with_name('rewindmq'))} --http-port {self.http_ports[1]}"
        say(
            "The stack is up. Ctrl-C or `make stack-stop` ends it. The next start finds its data.\n"
            f"  AMQP    {'  '.join(f'amqp://guest:guest@127.0.0.1:{port}/' for port in self.amqp_ports)}\n"
            f"  HTTP    {'  '.join(f'http://127.0.0.1:{port}/' for port in self.http_ports)}   (guest, guest)\n"
            f"  try     {rewindmq} cluster_status\n"
            f"  Kafka   {self.bootstrap}   (topics rewindmq.metadata, rewindmq.queues, rewindmq.nodes)\n"
            f"  audit   {self.data / 'audit' / 'reports.jsonl'}   (the same for people: {self.data / 'spark.log'})"
        )


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def require_free(port: int) -> None:
    """Raise Failure if the port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise Failure(f"port {port}: {error.strerror}; see --help for other ports") from None


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def only_one(data: Path) -> Iterator[None]:
    """Hold the lock on DIR/stack.pid while a stack runs there. Failure: another stack has it."""
    data.mkdir(parents=True, exist_ok=True)
    with (data / "stack.pid").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failure(f"{data}: a stack runs there already: `make stack-stop` ends it") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
        file.truncate(0)


def up(options: argparse.Namespace) -> None:
    """Run the stack until a signal comes."""

    def stopped(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process is ending already
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    from tests.support.kafka.cluster import missing

    reason = missing()
    if reason is not None:
        raise Failure(reason)
    with only_one(options.data.absolute()):
        stack = Stack(options)
        signal.signal(signal.SIGINT, stopped)
        signal.signal(signal.SIGTERM, stopped)
        try:
            stack.start()
            stack.stay()
        except Stopped:
            say("stopping ...")
        finally:
            stack.stop()
    say("stopped")


def stop(options: argparse.Namespace) -> None:
    """Tell the stack to stop, and wait until all its processes have ended."""
    path = options.data.absolute() / "stack.pid"
    if not path.exists():
        return
    with path.open() as file:
        asked = False
        deadline = time.monotonic() + 4 * STOP_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            file.seek(0)
            if not asked and (pid := file.read()):
                os.kill(int(pid), signal.SIGTERM)
                asked = True
            time.sleep(0.1)
    raise Failure(f"process {path.read_text()} does not end")


def main() -> int:
    parser = argparse.ArgumentParser(description="RewindMQ on Kafka with Spark's audit, on the loopback address.")
    parser.add_argument("what", choices=("up", "stop"))
    parser.add_argument("--data", type=Path, default=ROOT / "stack-data")
    parser.add_argument(
        "--amqp-port", type=int, default=5672, help="of the first node; the second node has the next port"
    )
    parser.add_argument("--http-port", type=int, default=15672, help="likewise")
    parser.add_argument(
        "--kafka-port",
        type=int,
        default=29092,
        help=f"of the first broker of Kafka; {KAFKA_PORTS} from there on are taken",
    )
    options = parser.parse_args()
    try:
        (up if options.what == "up" else stop)(options)
    except Failure as failure:
        print(f"stack: {failure}", file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
