"""The clients' own test suites: their requirements, the address of the broker for each, and the tests that passed."""

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.acceptance import java, node, php, ruby, rust, tutorials
from tests.acceptance.brokers import AMQP_PORT, ANY, MANAGEMENT_PORT, TLS_PORT, USUAL, Certificates, Ports, is_free
from tests.acceptance.fetching import copied, go_module, python, repository, source
from tests.acceptance.request import NotRun, Outcome, Request, by_name
from tests.support.certificates import Authority
from tests.support.needs import found

PIKA = "1.4.4"
FASTSTREAM = "0.7.4"
DRAMATIQ = "2.2.0"
Run = Callable[[Request], Outcome]


@dataclass(frozen=True)
class Suite:
    """`what`: the part of the client's tests that is run. `programs`: what has to be installed, beside Python."""

    what: str
    run: Run
    programs: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()  # on localhost, fixed in the suite

    @property
    def needs(self) -> str:
        return ", ".join((*self.programs, *(f"port {port}" for port in self.ports)))

    def check(self) -> None:
        """Raises NotRun for what is missing."""
        missing = [f"{program} is not installed" for program in self.programs if found(program) is None]
        missing += [f"port {port} is taken, and this suite knows no other" for port in self.ports if not is_free(port)]
        if missing:
            raise NotRun("; ".join(missing))


def pytest(
    request: Request, interpreter: Path, home: Path, arguments: list[str], environment: dict[str, str] | None = None
) -> dict[str, bool]:
    """`arguments`: of pytest, paths of tests last."""
    command = [str(interpreter), "-m", "pytest", "-rA", "-q", "--timeout", "120", "--no-header", "--tb", "short"]
    chosen = ["-k", request.tests] if request.tests else []
    said = request.printed([*command, *chosen, *arguments], home, environment)
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+?::[^\s]+(?: [^-\s]\S*)*)", said, re.MULTILINE)
    if not found:
        raise request.no_outcome()
    return by_name((name, word == "PASSED") for word, name in found)  # a test that passes may fail at its teardown


def go(request: Request, home: Path, arguments: list[str], environment: dict[str, str]) -> dict[str, bool]:
    chosen = ["-run", request.tests] if request.tests else []
    limit = f"{request.limit_seconds:.0f}s"  # Go's own is ten minutes
    said = request.printed(["go", "test", "-count=1", "-timeout", limit, "-v", *chosen, *arguments], home, environment)
    found = re.findall(r"^\s*--- (PASS|FAIL): (\S+)", said, re.MULTILINE)
    if not found:
        raise request.no_outcome()
    return by_name((name, word == "PASS") for word, name in found)


def asyncio_client(suite: str) -> Run:
    """aiormq, aio-pika: over plain TCP, over TLS with and without a certificate of the client, through proxies."""

    def run(request: Request) -> Outcome:
        interpreter = python(
            suite, suite, "aiormq", "aiomisc-pytest", "pytest-cov", "pytest-rst", "markdown-pytest", "shortuuid"
        )
        home = source(suite, interpreter)
        theirs = source("aiormq", interpreter) / "tests" / "certs"
        certificates = Certificates(theirs / "ca.pem", theirs / "server.pem", theirs / "server.key")
        with request.start(certificates, ANY) as broker:
            environment = {
                "AMQP_PORT": str(broker.amqp_port),
                "AMQPS_PORT": str(broker.tls_port),
                "PYTHONPATH": str(Path(__file__).parent),
            }
            if broker.is_ours:
                environment["REWINDMQ_PYTHON"] = sys.executable  # for brokers that tests kill and start again
            tests = pytest(request, interpreter, home, ["-p", "broker_for_docker", "tests"], environment)
        return Outcome(home.name, tests)

    return run


def blocking_client(suite: str, test: str) -> Run:
    """py-amqp, kombu. Their source distributions lack the certificates of t/certs: ours are put there."""

    def run(request: Request) -> Outcome:
        interpreter = python(suite, suite, "pytz", "pytest-rerunfailures")
        home = source(suite, interpreter)
        certificates = home / "t" / "certs"
        shutil.rmtree(certificates, ignore_errors=True)
        certificates.mkdir()
        authority = Authority(certificates, "ca_certificate")
        server = authority.issue("server_certificate", "/CN=localhost", "IP:127.0.0.1,DNS:localhost")
        client = authority.issue("client_certificate", "/CN=client")
        client.key.rename(certificates / "client_key.pem")
        shutil.copy(client.certificate, certificates / "client_certificate_broken.pem")
        shutil.copy(server.key, certificates / "client_key_broken.pem")  # another's
        with request.start(Certificates(authority.certificate, server.certificate, server.key), ANY) as broker:
            environment = {
                "RABBITMQ_HOST": "127.0.0.1",
                "RABBITMQ_5672_TCP": str(broker.amqp_port),
                "RABBITMQ_5671_TCP": str(broker.tls_port),
            }
            tests = pytest(request, interpreter, home, ["-p", "no:cacheprovider", test], environment)
        return Outcome(home.name, tests)

    return run


def pika(*options: str) -> Run:
    """Every adapter: blocking, thread-safe, select, asyncio, gevent, tornado, twisted."""

    def run(request: Request) -> Outcome:
        interpreter = python("pika", "gevent", "tornado", "twisted", "service-identity")
        home = repository("pika/pika", PIKA)
        theirs = home / "testdata" / "certs"
        certificates = Certificates(
            theirs / "ca_certificate.pem", theirs / "server_certificate.pem", theirs / "server_key.pem"
        )
        with request.start(certificates, ANY) as broker:
            ports = {5672: broker.amqp_port, 5671: broker.tls_port}
            copy = copied(home, ports, "tests/acceptance/*.py", "tests/base/*.py", "tests/misc/*.py")
            try:
                return Outcome(PIKA, pytest(request, interpreter, copy, [*options, "tests/acceptance"]))
            finally:
                shutil.rmtree(copy.parent)

    return run


def go_client(request: Request) -> Outcome:
    """Its tests of recovery cut connections over the management API, at this port and nowhere else."""
    home = go_module("github.com/rabbitmq/amqp091-go")
    ports = Ports(http=MANAGEMENT_PORT)
    with tempfile.TemporaryDirectory() as making, request.start(own_certificates(Path(making)), ports) as broker:
        tests = go(request, home, ["-tags", "integration"], {"AMQP_URL": broker.amqp_url})
    return Outcome(home.name.removeprefix("v"), {name: passed for name, passed in tests.items() if "/" not in name})


def with_own_certificates(run: Callable[[Request, Certificates], Outcome]) -> Run:
    def started(request: Request) -> Outcome:
        with tempfile.TemporaryDirectory() as making:
            return run(request, own_certificates(Path(making)))

    return started


def at_the_usual_ports(run: Run) -> Run:
    """A suite that has fixed localhost, 5672 and 15672, without TLS."""

    def started(request: Request) -> Outcome:
        with tempfile.TemporaryDirectory() as making, request.start(own_certificates(Path(making)), USUAL):
            return run(request)

    return started


def rabbitmq_client(request: Request) -> Outcome:
    command = "exec node -r ts-node/register --test --test-concurrency=1 --test-reporter=tap"
    chosen = ["--test-name-pattern", request.tests] if request.tests else []
    environment = {"RABBITMQ_URL": f"amqp://guest:guest@localhost:{AMQP_PORT}"}
    whole = ["sh", "-c", f'{command} "$@" test/*.ts', "sh", *chosen]
    return node.run("cody-greene/node-rabbitmq-client", "v5.0.8", request, whole, environment)


def rascal(request: Request) -> Outcome:
    environment = {"FILES": request.tests or r"^[\w-]+.tests.js$"}
    return node.run("onebeyond/rascal", "v21.0.1", request, ["node", "-e", node.ZUNIT_TAP], environment)


def watermill(request: Request) -> Outcome:
    home = go_module("github.com/ThreeDotsLabs/watermill-amqp")
    environment = {"WATERMILL_TEST_AMQP_URI": f"amqp://guest:guest@localhost:{AMQP_PORT}/"}
    return Outcome(home.name.removeprefix("v"), go(request, home, ["-mod=mod", "./..."], environment))


def faststream(request: Request) -> Outcome:
    interpreter = python(
        "faststream",
        f"faststream[rabbit,nats]=={FASTSTREAM}",
        "pytest-asyncio",
        "dirty-equals",
        "fastapi",
        "httpx",
        "typer",
        "pyyaml",
        "python-multipart",
        "pydantic-settings",
        "psutil",
        "watchfiles",
        "msgspec",
        "jsonschema",
        "freezegun",
        "pytest-rerunfailures",
        "prometheus-client<0.30",
        "opentelemetry-sdk",
        "email-validator",
        "uvicorn",
    )
    home = repository("ag2ai/faststream", FASTSTREAM)
    options = ["-o", "addopts=", "-m", "rabbit and connected"]
    options += [f"tests/{part}/rabbit" for part in ("brokers", "opentelemetry", "prometheus")]
    return Outcome(FASTSTREAM, pytest(request, interpreter, home, options))


def dramatiq(request: Request) -> Outcome:
    interpreter = python("dramatiq", f"dramatiq[rabbitmq,redis]=={DRAMATIQ}", "pytest-benchmark", "pylibmc", "gevent")
    home = repository("Bogdanp/dramatiq", f"v{DRAMATIQ}")
    return Outcome(DRAMATIQ, pytest(request, interpreter, home, ["-o", "addopts=", "tests/test_rabbitmq.py"]))


def own_certificates(home: Path) -> Certificates:
    authority = Authority(home)
    server = authority.issue("server", "/CN=localhost", "IP:127.0.0.1,DNS:localhost")
    return Certificates(authority.certificate, server.certificate, server.key)


USUAL_PORTS = (AMQP_PORT, MANAGEMENT_PORT)
GIT = ("git",)
MAVEN = ("git", "mvn", "javac")
NODE = ("git", "node", "npm")
TUTORIALS = ("git", "mvn", "javac", "go", "node", "npm", "ruby", "php", "cargo")
SUITES: dict[str, Suite] = {
    "aiormq": Suite("all: TCP, TLS, client certificates, proxies", asyncio_client("aiormq")),
    "aio-pika": Suite("all: the same, big messages, robust connections", asyncio_client("aio-pika")),
    "amqp": Suite("py-amqp: integration, TCP and TLS", blocking_client("amqp", "t/integration/test_rmq.py")),
    "kombu": Suite("integration over py-amqp", blocking_client("kombu", "t/integration/test_py_amqp.py")),
    "pika": Suite("acceptance, each adapter", pika(), GIT),
    "pika-tls": Suite("the same over TLS", pika("--use-tls"), GIT),
    "amqp091-go": Suite("Go: all, with recovery of cut connections", go_client, ("go",), (MANAGEMENT_PORT,)),
    "java": Suite(
        "FunctionalTestSuite", with_own_certificates(partial(java.run, "FunctionalTestSuite")), MAVEN, USUAL_PORTS
    ),
    "java-server": Suite(
        "ServerTestSuite", with_own_certificates(partial(java.run, "ServerTestSuite")), MAVEN, USUAL_PORTS
    ),
    "watermill-amqp": Suite("Go: all but restarts and stress", at_the_usual_ports(watermill), ("go",), USUAL_PORTS),
    "rabbitmq-client": Suite("Node: all", at_the_usual_ports(rabbitmq_client), NODE, USUAL_PORTS),
    "rascal": Suite("Node, over amqplib: all", at_the_usual_ports(rascal), NODE, USUAL_PORTS),
    "php-amqplib": Suite("PHP: all, TCP, TLS and proxies", php.run, ("git", "php", "phpunit", "go")),
    "bunny": Suite("Ruby: those for a broker", ruby.run, ("git", "ruby", "rspec"), (TLS_PORT, *USUAL_PORTS)),
    "lapin": Suite("Rust: all, over tokio and smol", with_own_certificates(rust.run), ("cargo",)),
    "tutorials": Suite(
        "RabbitMQ's 1 to 6 in 7 languages", with_own_certificates(tutorials.run), TUTORIALS, USUAL_PORTS
    ),
    "faststream": Suite("those for a RabbitMQ", at_the_usual_ports(faststream), GIT, USUAL_PORTS),
    "dramatiq": Suite("test_rabbitmq.py", at_the_usual_ports(dramatiq), GIT, USUAL_PORTS),
}
