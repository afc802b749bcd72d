"""Other people's acceptance suites against RewindMQ: `make acceptance`, or `python -m tests.acceptance.run NAME ...`.

Each suite is fetched where its authors publish it (the source distribution, the Go module) into the user's cache,
never into this repository, and runs against a broker of its own. What fails and is not in KNOWN makes the exit code 1;
what is in KNOWN and passes is said. Takes half an hour, most of it aio-pika's and aiormq's.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

from tests.running import ROOT, RunningBroker, free_port

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rewindmq" / "acceptance"
MANAGEMENT_PORT = 15672  # the Go client's suite asks the management API there, and nowhere else

# suite -> test (a regular expression) -> why it does not pass
KNOWN: dict[str, dict[str, str]] = {
    "amqp": {r"tls": "their source distribution lacks the certificates, t/certs"},
    "amqp091-go": {
        r"^TestDeclareArgsRejectToDeadLetterQueue$":
            "asks ten times at once for a dead letter, which leaves when its death is durable, some milliseconds later",
    },
}  # fmt: skip

Outcome = dict[str, bool]  # test -> whether it passed; skipped ones are left out
Start = Callable[..., RunningBroker]  # a broker with these options


def python(suite: str, *packages: str) -> Path:
    """The interpreter of an environment with these packages."""
    home = CACHE / suite / "venv"
    if not (home / "bin" / "pytest").exists():
        venv.create(home, with_pip=True, clear=True)
        command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "pytest", "pytest-timeout", *packages], check=True)
    return home / "bin" / "python"


def source(suite: str, interpreter: Path) -> Path:
    """The unpacked source distribution of that version which `interpreter` has."""
    told = subprocess.run([str(interpreter), "-m", "pip", "show", suite], capture_output=True, text=True, check=True)
    version = next(line.split()[1] for line in told.stdout.splitlines() if line.startswith("Version:"))
    home = CACHE / suite / version
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as fetched:
            command = [str(interpreter), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", suite]
            subprocess.run([*command, f"{suite}=={version}", "--dest", fetched], check=True)
            shutil.unpack_archive(next(Path(fetched).glob("*.tar.gz")), fetched)
            next(path for path in Path(fetched).iterdir() if path.is_dir()).rename(home)
    return home


def pytest(interpreter: Path, home: Path, arguments: list[str], environment: dict[str, str]) -> Outcome:
    command = [str(interpreter), "-m", "pytest", "-rA", "-q", "--timeout", "60", "--no-header", "--tb", "short"]
    ran = subprocess.run(
        [*command, *arguments], cwd=home, env={**os.environ, **environment}, capture_output=True, text=True
    )
    (home / "output").write_text(ran.stdout + ran.stderr)
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+?::[^\s]+(?: [^-\s]\S*)*)", ran.stdout, re.MULTILINE)
    assert found, ran.stdout[-3000:] + ran.stderr[-3000:]
    return {name: word == "PASSED" for word, name in found}


def asyncio_client(suite: str) -> Callable[[Start], Outcome]:
    def run(start: Start) -> Outcome:
        interpreter = python(
            suite, suite, "aiormq", "aiomisc-pytest", "pytest-cov", "pytest-rst", "markdown-pytest", "shortuuid"
        )
        certificates = source("aiormq", interpreter) / "tests" / "certs"
        port = str(free_port())
        broker = start(
            "--tls-port", port, "--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key",
            "--tls-ca", certificates / "ca.pem", "--tls-verify-peer",
        )  # fmt: skip
        environment = {
            "AMQP_PORT": str(broker.amqp_port), "AMQPS_PORT": port, "PYTHONPATH": str(Path(__file__).parent)
        }  # fmt: skip
        return pytest(interpreter, source(suite, interpreter), ["-p", "broker_for_docker", "tests"], environment)

    return run


def blocking_client(suite: str, test: str) -> Callable[[Start], Outcome]:
    def run(start: Start) -> Outcome:
        broker = start()
        interpreter = python(suite, suite, "pytz")
        environment = {"RABBITMQ_HOST": "127.0.0.1", "RABBITMQ_5672_TCP": str(broker.amqp_port)}
        return pytest(interpreter, source(suite, interpreter), ["-p", "no:cacheprovider", test], environment)

    return run


def go_client(start: Start) -> Outcome:
    home = CACHE / "amqp091-go"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as asking:
            (Path(asking) / "go.mod").write_text("module asking\n\ngo 1.20\n")
            told = subprocess.run(
                ["go", "mod", "download", "-json", "github.com/rabbitmq/amqp091-go@latest"], cwd=asking,
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            found = re.search(r'"Dir": "(.*)"', told.stdout)
            assert found, told.stdout
            shutil.copytree(found[1], home)
            subprocess.run(["chmod", "-R", "u+w", str(home)], check=True)  # the module cache is read-only
    free = port_is_free(MANAGEMENT_PORT)
    broker = start("--http-port", MANAGEMENT_PORT) if free else start()
    command = ["go", "test", "-tags", "integration", "-count=1", "-timeout", "600s", "-v"]
    if not free:
        print(f"  port {MANAGEMENT_PORT} is taken: without the tests of recovery, which cut connections over HTTP")
        command += ["-skip", "^TestConnectionRecovery"]
    ran = subprocess.run(
        command, cwd=home, env={**os.environ, "AMQP_URL": broker.amqp_url}, capture_output=True, text=True
    )
    (home / "output").write_text(ran.stdout + ran.stderr)
    found = re.findall(r"^--- (PASS|FAIL): (\S+)", ran.stdout, re.MULTILINE)
    assert found, ran.stdout[-3000:] + ran.stderr[-3000:]
    return {name: word == "PASS" for word, name in found}


SUITES: dict[str, Callable[[Start], Outcome]] = {
    "aiormq": asyncio_client("aiormq"),
    "aio-pika": asyncio_client("aio-pika"),
    "amqp": blocking_client("amqp", "t/integration/test_rmq.py"),
    "kombu": blocking_client("kombu", "t/integration/test_py_amqp.py"),
    "amqp091-go": go_client,
}


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def judged(suite: str, came: Outcome) -> int:
    """Prints how it went; how many fail that are not known to."""
    known = KNOWN.get(suite, {})
    failed = sorted(name for name, passed in came.items() if not passed)
    why = {name: next((why for pattern, why in known.items() if re.search(pattern, name)), None) for name in failed}
    print(f"{suite}: {sum(came.values())} of {len(came)} pass")
    for name, reason in why.items():
        print(f"  {'known' if reason else 'FAILED'}  {name}" + (f": {reason}" if reason else ""))
    for pattern in known:
        if not any(re.search(pattern, name) for name in failed):
            print(f"  passes now: {pattern}")
    return sum(reason is None for reason in why.values())


def main(names: list[str]) -> int:
    CACHE.mkdir(parents=True, exist_ok=True)
    new = 0
    for suite in names or list(SUITES):
        brokers: list[RunningBroker] = []

        def start(*options: object, started: list[RunningBroker] = brokers) -> RunningBroker:
            started.append(RunningBroker(Path(tempfile.mkdtemp()) / "data", *map(str, options)))
            return started[-1]

        try:
            new += judged(suite, SUITES[suite](start))
        finally:
            for broker in brokers:
                broker.stop()
                shutil.rmtree(broker.data.parent)
    return 1 if new else 0


if __name__ == "__main__":
    assert Path.cwd() == ROOT, "run it from the checkout: python -m tests.acceptance.run"
    sys.exit(main(sys.argv[1:]))
