"""A real Apache Kafka (KRaft, combined nodes) on loopback, for tests and for trying things out.

    with KafkaCluster(directory, nodes=3) as kafka:
        kafka.bootstrap                          "127.0.0.1:p1,127.0.0.1:p2,127.0.0.1:p3"
        kafka.kill(2); kafka.start_node(2); kafka.wait_in_sync()
        with kafka.proxied() as line:            a way to the same nodes that can be cut: tests/support/kafka/proxy.py
            line.bootstrap; line.blackhole(); line.resume()

    python -m tests.support.kafka.cluster DIRECTORY [--nodes 3] [--first-port 29092]

Needs Java 17 and Maven (for the jars, fetched once into tests/support/kafka/target). A node dies with the process that
started it, even when that is killed. A cluster that is started in a directory has the data that is in it.
"""

import argparse
import base64
import contextlib
import ctypes
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVarTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.installed_once import installing
from tests.support.kafka.proxy import Proxies
from tests.support.needs import found, needed
from tests.support.ports import free_ports

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
START_SECONDS = 120
# Beyond these a test's Kafka has nothing to do; the small code cache of C1 starts fastest.
JAVA = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
    f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}",
)
# A dead node's partitions get new leaders, and it may come back, after its session has ended: 9 s by default.
FAST = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "500",
}
# Nodes are started by this thread, which lives as long as the process: Linux ends a child with the *thread* that
# started it.
Given = TypeVarTuple("Given")
_starter = ThreadPoolExecutor(1, thread_name_prefix="kafka-starter")


def missing() -> str | None:
    """The program that has to be installed before a Kafka can be started here; None: none."""
    if found("java") is None:
        return "install Java 17 (java is not on the path) to test with a real Kafka"
    if found("mvn") is None and not (TARGET / "ready").exists():
        return "install Maven (mvn is not on the path), which fetches the Kafka that is tested with"
    return None


class KafkaCluster:
    """One or more nodes, numbered from 1, each broker and controller.

    `ports`: four for each node (clients, controllers, behind the proxy, and the proxy), first those of the first kind;
    else free ones."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 1,
        settings: Mapping[str, str] | None = None,
        ports: Sequence[int] | None = None,
        java: Sequence[str] = JAVA,
    ) -> None:
        self.directory = directory
        self.nodes = nodes
        self.settings = dict(settings or {})
        self.java = java
        ports = ports or free_ports(4 * nodes)
        assert len(ports) == 4 * nodes
        of_kind = [list(ports[kind * nodes : (kind + 1) * nodes]) for kind in range(4)]
        self.ports, self._controllers, self._behind, self._proxies = of_kind
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def __enter__(self) -> Self:
        fetch_jars()
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._format()
            self.start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_node(self, node: int, wait: bool = True) -> None:
        """Start a node, or start it again. With `wait`, until it and all others that run are seen by each other."""
        assert node not in self.processes, f"node {node} runs"
        home = self._home(node)
        with (home / "server.log").open("ab") as output:
            started = _starter.submit(
                subprocess.Popen,
                java("kafka.Kafka", str(home / "server.properties"), options=self.java),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_die_with_parent,
            )
            self.processes[node] = started.result()
        if wait:
            self.wait()

    def start_all(self) -> None:
        """Start each node that does not run, and resume each one that was paused."""
        for node in self.processes:
            self.go_on(node)
        for node in set(range(1, self.nodes + 1)) - self.processes.keys():
            self.start_node(node, wait=False)
        self.wait()

    def kill(self, node: int) -> None:
        """End a node as a power cut does."""
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def pause(self, node: int) -> None:
        """Stop a node with SIGSTOP. Its connections stay."""
        self.processes[node].send_signal(signal.SIGSTOP)

    def go_on(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all nodes.

        They are not asked to hand over first: the data that tests need survives a kill."""
        for node in list(self.processes):
            self.kill(node)

    def wait(self) -> None:
        """Wait until each running node sees all running nodes."""
        for node in self.processes:
            admin = self._admin(self.ports[node - 1])
            self._until(lambda admin: len(admin.list_topics(timeout=1).brokers) >= len(self.processes), admin)

    def wait_in_sync(self) -> None:
        """Wait until all replicas of all partitions are in sync, and each partition has a leader."""
        admin = self._admin(*self.ports)

        def in_sync() -> bool:
            topics = admin.list_topics(timeout=1).topics.values()
            return all(
                partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
                for topic in topics
                for partition in topic.partitions.values()
            )

        self._until(in_sync)

    @contextlib.contextmanager
    def proxied(self) -> Iterator[Proxies]:
        """A second way to the nodes, which can be cut. Only one exists at a time."""
        with Proxies(dict(zip(self._proxies, self._behind, strict=True))) as proxies:
            yield proxies

    def output(self, node: int) -> str:
        """The end of the node's output."""
        return (self._home(node) / "server.log").read_text()[-3000:]

    def _admin(self, *ports: int) -> AdminClient:
        # Without these it looks again after up to ten seconds only.
        return AdminClient(
            {
                "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
                "log_level": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )

    def _until(self, true: Callable[[*Given], bool], *given: *Given) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            for node, process in self.processes.items():
                if process.poll() is not None:
                    raise AssertionError(f"Kafka's node {node} ended with {process.returncode}: {self.output(node)}")
            with contextlib.suppress(KafkaException):
                if true(*given):
                    return
            if time.monotonic() > deadline:
                ends = "\n".join(self.output(node) for node in self.processes)
                raise AssertionError(f"Kafka is not ready after {START_SECONDS} s: {ends}")
            time.sleep(0.05)

    def _home(self, node: int) -> Path:
        return self.directory / f"node-{node}"

    def _format(self) -> None:
        """Make the nodes' directories, where they are not yet."""
        name = self.directory / "cluster.id"
        if not name.exists():
            name.write_text(_kafka_uuid())
        formats = []
        for node in range(1, self.nodes + 1):
            home = self._home(node)
            home.mkdir(exist_ok=True)
            properties = home / "server.properties"
            properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties(node).items()))
            if not (home / "data").exists():
                options = ("format", "-t", name.read_text(), "-c", str(properties))
                formats.append(
                    subprocess.Popen(
                        java("kafka.tools.StorageTool", *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                    )
                )
        for process in formats:
            output, _ = process.communicate(timeout=START_SECONDS)
            assert process.returncode == 0, output.decode()

    def _properties(self, node: int) -> dict[str, str]:
        at = node - 1
        listeners = {"PLAINTEXT": self.ports[at], "PROXIED": self._behind[at], "CONTROLLER": self._controllers[at]}
        advertised = {"PLAINTEXT": self.ports[at], "PROXIED": self._proxies[at]}
        replicas, in_sync = str(min(3, self.nodes)), "2" if self.nodes >= 3 else "1"
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "listeners": _addresses(listeners),
            "advertised.listeners": _addresses(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(f"{i}@127.0.0.1:{p}" for i, p in enumerate(self._controllers, 1)),
            "log.dirs": str(self._home(node) / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "share.coordinator.state.topic.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(2 * 1024 * 1024 + 1),  # else half of the heap
            "num.network.threads": "2",
            "num.io.threads": "2",
            "num.recovery.threads.per.data.dir": "1",
            **self.settings,
        }


def java(main: str, *arguments: str, options: Sequence[str] = JAVA) -> list[str]:
    jars = sorted(str(path) for path in (TARGET / "lib").glob("*.jar"))
    return [needed("java"), *options, "-cp", ":".join(jars), main, *arguments]


def fetch_jars() -> None:
    """Fetch the jars, once for this checkout."""
    with installing(TARGET, "ready") as missing:
        if missing:
            subprocess.run([needed("mvn"), "-B", "-q", "-f", str(HERE / "pom.xml"), "package"], check=True)


def _addresses(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items())


def _kafka_uuid() -> str:
    """A UUID as Kafka writes it. One that begins with - would be taken for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description="Apache Kafka on loopback, until it is interrupted.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--first-port", type=int, default=29_092)
    options = parser.parse_args()
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    ports = range(options.first_port, options.first_port + 4 * options.nodes)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    began = time.monotonic()
    with KafkaCluster(options.directory.resolve(), options.nodes, FAST, ports) as kafka:
        print(f"ready after {time.monotonic() - began:.1f} s: bootstrap servers {kafka.bootstrap}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
