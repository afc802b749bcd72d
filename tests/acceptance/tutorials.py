"""RabbitMQ's tutorials 1 to 6 from its own repository, unmodified, in seven languages.

Each language has its own broker. The programs run in a terminal, as a reader runs them, and each receiver has to print
what a sender sent to it, and nothing that was sent to others. TUTORIALS=DIRECTORY names a copy of the repository.
"""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance import php, ruby
from tests.acceptance.brokers import USUAL, Address, Certificates
from tests.acceptance.fetching import CACHE, python, repository
from tests.acceptance.request import NotRun, Outcome, Request
from tests.support.running import start_process

SECONDS = 60.0  # for a program to do what is expected of it
JAVA = ("com.rabbitmq:amqp-client:5.21.0", "org.slf4j:slf4j-api:2.0.13", "org.slf4j:slf4j-simple:2.0.13")
PROGRAMS = ["send", "receive", "new_task", "worker", "emit_log", "receive_logs", "rpc_client", "rpc_server"]
PROGRAMS += ["emit_log_direct", "receive_logs_direct", "emit_log_topic", "receive_logs_topic"]
Command = Callable[[str], list[str]]  # of a program, by its name without an ending


@dataclass(frozen=True)
class Language:
    """`prepare` installs and compiles what a copy of the directory needs, and returns the programs' commands."""

    directory: str
    prepare: Callable[[Path], Command]


def of_python(home: Path) -> Command:
    interpreter = python("tutorials", "pika")
    return lambda name: [str(interpreter), f"{name}.py"]


def of_java(home: Path) -> Command:
    for artifact in JAVA:
        copy = [
            "mvn",
            "--quiet",
            "--batch-mode",
            "-Dstyle.color=never",
            "dependency:copy",
            f"-Dartifact={artifact}",
            "-DoutputDirectory=.",
        ]
        subprocess.run(copy, cwd=home, check=True)
    path = ":".join((".", *(jar.name for jar in home.glob("*.jar"))))
    classes = {"receive": "Recv", "rpc_client": "RPCClient", "rpc_server": "RPCServer"}
    classes = {name: classes.get(name, name.title().replace("_", "")) for name in PROGRAMS}
    subprocess.run(["javac", "-cp", path, *(f"{name}.java" for name in classes.values())], cwd=home, check=True)
    return lambda name: ["java", "-cp", path, classes[name]]


def of_go(home: Path) -> Command:
    for name in PROGRAMS:
        subprocess.run(["go", "build", "-o", name, f"{name}.go"], cwd=home, check=True)
    return lambda name: [f"./{name}"]


def of_node(home: Path) -> Command:
    subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=home, check=True)
    return lambda name: ["node", f"src/{name}.js"]


def of_ruby(home: Path) -> Command:
    options = [option for gem in ruby.gems("3.1.0") for option in ("-I", str(gem / "lib"))]  # as in the Gemfile
    return lambda name: ["ruby", *options, f"{name}.rb"]


def of_php(home: Path) -> Command:
    php.write_autoload(home, {"PhpAmqpLib": php.client() / "PhpAmqpLib"})
    return lambda name: ["php", f"{name}.php"]


def of_rust(home: Path) -> Command:
    target = CACHE / "tutorials" / home.name
    command = ["cargo", "build", "--quiet", "--locked", "--bins", "--target-dir", str(target)]
    subprocess.run(command, cwd=home, check=True)
    return lambda name: [str(target / "debug" / name)]


LANGUAGES = {
    "python": Language("python", of_python),
    "java": Language("java", of_java),
    "go": Language("go", of_go),
    "node": Language("javascript-nodejs", of_node),
    "ruby": Language("ruby", of_ruby),
    "php": Language("php", of_php),
    "rust": Language("rust-lapin", of_rust),
}


class Failed(Exception):
    """A program did not do what its tutorial says."""


class Terminal:
    """A running program, and what it has printed on its terminal."""

    def __init__(self, command: list[str], home: Path) -> None:
        self.printed = ""
        self._master, slave = pty.openpty()
        self.process = start_process(
            command, cwd=home, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the program has ended
            while some := os.read(self._master, 65536):
                self.printed += some.decode(errors="replace")

    def wait_for(self, pattern: str) -> None:
        wait_until(lambda: re.search(pattern, self.printed) is not None, lambda: f"no {pattern!r} in {self.printed!r}")

    def ended(self) -> str:
        """Return what the program printed until it ended, which it has to do well."""
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end: {self.printed!r}") from None
        self._reader.join(SECONDS)
        if code != 0:
            raise Failed(f"it ended with {code}: {self.printed!r}")
        return self.printed

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(SECONDS)
        os.close(self._master)


def wait_until(is_so: Callable[[], bool], why_not: Callable[[], str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise Failed(why_not())
        time.sleep(0.05)


@dataclass
class Room:
    """A place to run the programs of one language."""

    home: Path
    command: Command
    broker: Address

    @contextlib.contextmanager
    def receivers(self, *commands: str) -> Iterator[list[Terminal]]:
        """Start these programs, and wait until each has a consumer."""
        with contextlib.ExitStack() as stack:
            started = []
            for command in commands:
                started.append(self._start(command))
                stack.callback(started[-1].stop)
                wait_until(
                    lambda: self._consumers() == len(started),
                    lambda: f"{self._consumers()} consumers of {len(started)}: {[each.printed for each in started]}",
                )
            yield started
        wait_until(lambda: self._consumers() == 0, lambda: "the consumers are still there")

    def send(self, command: str, *arguments: str) -> str:
        sender = self._start(command, *arguments)
        try:
            return sender.ended()
        finally:
            sender.stop()

    def _start(self, command: str, *arguments: str) -> Terminal:
        name, *patterns = command.split()
        return Terminal([*self.command(name), *patterns, *arguments], self.home)

    def _consumers(self) -> int:
        return len(self.broker.manage("consumers"))


def hello(room: Room) -> None:
    with room.receivers("receive") as (receiver,):
        room.send("send")
        receiver.wait_for("Received .*Hello [Ww]orld!")  # Rust's is small


def work_queues(room: Room) -> None:
    """Each of two workers gets one of two tasks, because it has not finished the other."""
    with room.receivers("worker", "worker") as workers:
        room.send("new_task", "first task..")
        room.send("new_task", "second task..")
        for worker in workers:
            worker.wait_for("(?s)Received.*(first|second) task.*Done")
        got = [re.findall("(first|second) task", worker.printed) for worker in workers]
        if sorted(got) != [["first"], ["second"]]:
            raise Failed(f"the workers got {got}")


def publish_subscribe(room: Room) -> None:
    with room.receivers("receive_logs", "receive_logs") as receivers:
        room.send("emit_log", "info: to all")
        for receiver in receivers:
            receiver.wait_for(r"\[x\].*info: to all")


def routing(room: Room) -> None:
    with room.receivers("receive_logs_direct error", "receive_logs_direct info error") as (errors, both):
        room.send("emit_log_direct", "info", "all is well")
        room.send("emit_log_direct", "error", "it burns")
        both.wait_for(r"(?s)\[x\].*all is well.*\[x\].*it burns")
        errors.wait_for(r"\[x\].*it burns")
        if "all is well" in errors.printed:
            raise Failed(f"an info came to {errors.printed!r}")


def topics(room: Room) -> None:
    with room.receivers("receive_logs_topic kern.*", "receive_logs_topic #") as (kernel, everything):
        room.send("emit_log_topic", "cron.info", "it ran")
        room.send("emit_log_topic", "kern.critical", "it burns")
        everything.wait_for(r"(?s)\[x\].*it ran.*\[x\].*it burns")
        kernel.wait_for(r"\[x\].*it burns")
        if "it ran" in kernel.printed:
            raise Failed(f"a message of cron came to {kernel.printed!r}")


def rpc(room: Room) -> None:
    with room.receivers("rpc_server"):
        said = room.send("rpc_client", "30")
        if not re.search(r"Got\D*832040\b", said):
            raise Failed(f"the client printed {said!r}")


TUTORIALS = (hello, work_queues, publish_subscribe, routing, topics, rpc)


def run(request: Request, certificates: Certificates) -> Outcome:
    """Return the outcome of each tutorial in each language; `tests` is a regular expression of their names."""
    named = os.environ.get("TUTORIALS")
    theirs = Path(named) if named else repository("rabbitmq/rabbitmq-tutorials", "main")
    asked = re.compile(request.tests or "")
    tests: dict[str, bool] = {}
    for name, language in LANGUAGES.items():
        wanted = {f"{name} {part.__name__}": part for part in TUTORIALS if asked.search(f"{name} {part.__name__}")}
        if wanted:
            with tempfile.TemporaryDirectory() as making, request.start(certificates, USUAL) as broker:
                home = Path(shutil.copytree(theirs / language.directory, Path(making) / language.directory))
                room = Room(home, language.prepare(home), broker)
                tests |= {test: passes(part, room) for test, part in wanted.items()}
    if not tests:
        raise NotRun(f"no tutorial is named {request.tests}")
    head = subprocess.run(["git", "log", "-1", "--format=%h"], cwd=theirs, capture_output=True, text=True)
    return Outcome(head.stdout.strip(), tests)


def passes(part: Callable[[Room], None], room: Room) -> bool:
    try:
        part(room)
    except Failed as why:
        print(f"  {part.__name__} in {room.home.name}: {why}", flush=True)
        return False
    return True
