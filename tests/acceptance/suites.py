"""How each suite is run: what it needs, how it is told where the broker is, and how it says what passed."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.acceptance import java, node
from tests.acceptance.brokers import ANY, MANAGEMENT_PORT, Certificates, Ports, Start, is_free
from tests.acceptance.fetching import copied, go_module, python, repository, source
from tests.support.certificates import Authority

PIKA = "1.4.4"
FASTSTREAM = "0.7.4"
DRAMATIQ = "2.2.0"
Outcome = dict[str, bool]  # test -> whether it passed; skipped ones are left out
Suite = Callable[[Start], Outcome]


def pytest(interpreter: Path, home: Path, arguments: list[str], environment: dict[str, str], log: Path) -> Outcome:
    command = [str(interpreter), "-m", "pytest", "-rA", "-q", "--timeout", "120", "--no-header", "--tb", "short"]
    ran = subprocess.run(
        [*command, *arguments], cwd=home, env={**os.environ, **environment}, capture_output=True, text=True
    )
    log.write_text(ran.stdout + ran.stderr)
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+?::[^\s]+(?: [^-\s]\S*)*)", ran.stdout, re.MULTILINE)
    assert found, ran.stdout[-3000:] + ran.stderr[-3000:]
    outcome = {name: True for word, name in found if word == "PASSED"}
    return outcome | {name: False for word, name in found if word != "PASSED"}  # who passed may fail when it ends


def asyncio_client(suite: str) -> Suite:
    """aiormq, aio-pika: over plain TCP, over TLS with and without a certificate of the client, through proxies."""

    def run(start: Start) -> Outcome:
        interpreter = python(
            suite, suite, "aiormq", "aiomisc-pytest", "pytest-cov", "pytest-rst", "markdown-pytest", "shortuuid"
        )
        home = source(suite, interpreter)
        theirs = source("aiormq", interpreter) / "tests" / "certs"
        with start(Certificates(theirs / "ca.pem", theirs / "server.pem", theirs / "server.key"), ANY) as broker:
            environment = {
                "AMQP_PORT": str(broker.amqp_port),
                "AMQPS_PORT": str(broker.tls_port),
                "PYTHONPATH": str(Path(__file__).parent),
            }
            return pytest(interpreter, home, ["-p", "broker_for_docker", "tests"], environment, home.parent / "output")

    return run


def blocking_client(suite: str, test: str) -> Suite:
    """py-amqp, kombu. Their source distributions lack the certificates of t/certs: ours are put there."""

    def run(start: Start) -> Outcome:
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
        with start(Certificates(authority.certificate, server.certificate, server.key), ANY) as broker:
            environment = {
                "RABBITMQ_HOST": "127.0.0.1",
                "RABBITMQ_5672_TCP": str(broker.amqp_port),
                "RABBITMQ_5671_TCP": str(broker.tls_port),
            }
            return pytest(interpreter, home, ["-p", "no:cacheprovider", test], environment, home.parent / "output")

    return run


def pika(*options: str) -> Suite:
    """Every adapter: blocking, thread-safe, select, asyncio, gevent, tornado, twisted."""

    def run(start: Start) -> Outcome:
        interpreter = python("pika", "gevent", "tornado", "twisted", "service-identity")
        home = repository("pika/pika", PIKA)
        theirs = home / "testdata" / "certs"
        certificates = Certificates(
            theirs / "ca_certificate.pem", theirs / "server_certificate.pem", theirs / "server_key.pem"
        )
        with start(certificates, ANY) as broker:
            ports = {5672: broker.amqp_port, 5671: broker.tls_port}
            copy = copied(home, ports, "tests/acceptance/*.py", "tests/base/*.py", "tests/misc/*.py")
            try:
                return pytest(interpreter, copy, [*options, "tests/acceptance"], {}, home.parent / "output")
            finally:
                shutil.rmtree(copy.parent)

    return run


def go_client(start: Start) -> Outcome:
    """Its tests of recovery cut connections over the management API, at this port and nowhere else."""
    home = go_module("github.com/rabbitmq/amqp091-go")
    free = is_free(MANAGEMENT_PORT)
    skipped = () if free else ("-skip", "Recovery")
    if not free:
        print(f"  port {MANAGEMENT_PORT} is taken: without the tests of recovery")
    with (
        tempfile.TemporaryDirectory() as making,
        start(own_certificates(Path(making)), Ports(http=MANAGEMENT_PORT if free else None)) as broker,
    ):
        ran = subprocess.run(
            ["go", "test", "-tags", "integration", "-count=1", "-timeout", "900s", "-v", *skipped],
            cwd=home,
            env={**os.environ, "AMQP_URL": broker.amqp_url},
            capture_output=True,
            text=True,
        )
    (home.parent / "amqp091-go.output").write_text(ran.stdout + ran.stderr)
    found = re.findall(r"^--- (PASS|FAIL): (\S+)", ran.stdout, re.MULTILINE)
    assert found, ran.stdout[-3000:] + ran.stderr[-3000:]
    return {name: word == "PASS" for word, name in found}


def java_client(suite: str) -> Suite:
    def run(start: Start) -> Outcome:
        with tempfile.TemporaryDirectory() as making:
            return java.run(suite, start, own_certificates(Path(making)))

    return run


AMQP_PORT = 5672  # the suites below know no other


def at_the_usual_ports(run: Callable[[Path], Outcome]) -> Suite:
    """A suite that has fixed localhost, 5672 and 15672. `run` is given a directory for what it makes."""

    def suite(start: Start) -> Outcome:
        for port in (AMQP_PORT, MANAGEMENT_PORT):
            assert is_free(port), f"port {port} is taken, and this suite knows no other"
        with tempfile.TemporaryDirectory() as making:
            home = Path(making)
            with start(own_certificates(home), Ports(AMQP_PORT, MANAGEMENT_PORT)):
                return run(home)

    return suite


def rabbitmq_client(_: Path) -> Outcome:
    command = ["sh", "-c", "exec node -r ts-node/register --test --test-concurrency=1 --test-reporter=tap test/*.ts"]
    url = f"amqp://guest:guest@localhost:{AMQP_PORT}"
    return node.run("cody-greene/node-rabbitmq-client", "v5.0.8", command, {"RABBITMQ_URL": url})


def rascal(_: Path) -> Outcome:
    return node.run("onebeyond/rascal", "v21.0.1", ["node", "-e", node.ZUNIT_TAP], {})


def watermill(_: Path) -> Outcome:
    home = go_module("github.com/ThreeDotsLabs/watermill-amqp")
    ran = subprocess.run(
        ["go", "test", "-mod=mod", "-count=1", "-timeout", "900s", "-v", "./..."],
        cwd=home,
        env={**os.environ, "WATERMILL_TEST_AMQP_URI": f"amqp://guest:guest@localhost:{AMQP_PORT}/"},
        capture_output=True,
        text=True,
    )
    (home.parent / "watermill-amqp.output").write_text(ran.stdout + ran.stderr)
    found = re.findall(r"^\s*--- (PASS|FAIL): (\S+)", ran.stdout, re.MULTILINE)
    assert found, ran.stdout[-3000:] + ran.stderr[-3000:]
    return {name: word == "PASS" for word, name in found}


def faststream(_: Path) -> Outcome:
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
    return pytest(interpreter, home, options, {}, home.parent / "output")


def dramatiq(_: Path) -> Outcome:
    interpreter = python("dramatiq", f"dramatiq[rabbitmq,redis]=={DRAMATIQ}", "pytest-benchmark", "pylibmc", "gevent")
    home = repository("Bogdanp/dramatiq", f"v{DRAMATIQ}")
    return pytest(interpreter, home, ["-o", "addopts=", "tests/test_rabbitmq.py"], {}, home.parent / "output")


def own_certificates(home: Path) -> Certificates:
    authority = Authority(home)
    server = authority.issue("server", "/CN=localhost", "IP:127.0.0.1,DNS:localhost")
    return Certificates(authority.certificate, server.certificate, server.key)


SUITES: dict[str, Suite] = {
    "aiormq": asyncio_client("aiormq"),
    "aio-pika": asyncio_client("aio-pika"),
    "amqp": blocking_client("amqp", "t/integration/test_rmq.py"),
    "kombu": blocking_client("kombu", "t/integration/test_py_amqp.py"),
    "pika": pika(),
    "pika-tls": pika("--use-tls"),
    "amqp091-go": go_client,
    "java": java_client("FunctionalTestSuite"),
    "java-server": java_client("ServerTestSuite"),
    "watermill-amqp": at_the_usual_ports(watermill),
    "rabbitmq-client": at_the_usual_ports(rabbitmq_client),
    "rascal": at_the_usual_ports(rascal),
    "faststream": at_the_usual_ports(faststream),
    "dramatiq": at_the_usual_ports(dramatiq),
}
