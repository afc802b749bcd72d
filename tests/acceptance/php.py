"""php-amqplib's unit and functional tests, from its repository, with PHPUnit and phpseclib of Debian.

Composer's registry is not needed, because an autoloader of ours takes its place. Some tests cut and slow connections
with Toxiproxy, which the Go module proxy has.
"""

import shutil
import subprocess
import xml.etree.ElementTree as Xml
from pathlib import Path

from tests.acceptance.brokers import ANY, Address, Certificates
from tests.acceptance.fetching import copied, go_program, repository
from tests.acceptance.request import Outcome, Request, by_name
from tests.support.ports import free_port
from tests.support.running import start_process

VERSION = "3.7.3"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0"
AUTOLOAD = r"""<?php
require_once 'phpseclib/autoload.php';
spl_autoload_register(function ($class) {
    foreach (%s as $prefix => $home) {
        $file = $home . '/' . str_replace('\\', '/', substr($class, strlen($prefix))) . '.php';
        if (str_starts_with($class, $prefix) && file_exists($file)) {
            require $file;
            return;
        }
    }
});
"""


def run(request: Request) -> Outcome:
    """Return the outcome of each test that PHPUnit did not skip."""
    certs = client() / "tests" / "certs"
    certificates = Certificates(
        certs / "ca_certificate.pem", certs / "server_certificate.pem", certs / "server_key.pem"
    )
    with request.start(certificates, ANY) as broker:
        control, report = free_port(), Path("report.xml")
        home = prepared(broker, control)
        command = [str(go_program(TOXIPROXY)), "-host", "127.0.0.1", "-port", str(control)]
        toxiproxy = start_process(command, stdout=subprocess.DEVNULL)
        environment = {
            "TEST_RABBITMQ_HOST": "127.0.0.1",
            "TEST_RABBITMQ_HOST6": "127.0.0.1",  # the brokers listen on no other address here
            "TEST_RABBITMQ_PORT": str(broker.amqp_port),
            "TOXIPROXY_HOST": "127.0.0.1",
            "TOXIPROXY_AMQP_PORT": str(free_port()),
        }
        chosen = ["--filter", request.tests] if request.tests else []
        try:
            request.printed(["phpunit", "--no-logging", "--log-junit", str(report), *chosen], home, environment)
            if not (home / report).exists():
                raise request.no_outcome()
            tests = by_name(
                (name_of(case), case.find("failure") is None and case.find("error") is None)
                for case in Xml.parse(home / report).iter("testcase")
                if case.find("skipped") is None
            )
        finally:
            toxiproxy.kill()
            toxiproxy.wait()
            shutil.rmtree(home.parent)
    return Outcome(VERSION, tests)


def prepared(broker: Address, toxiproxy_port: int) -> Path:
    """A copy of their repository with the ports of this run and an autoloader."""
    ports = {5672: broker.amqp_port, 5671: broker.tls_port, 8474: toxiproxy_port}
    files = ("Unit/Connection/AMQPConnectionConfig", "Functional/Connection/SSLConnection", "Functional/ToxiProxy")
    home = copied(client(), ports, *(f"tests/{file}*.php" for file in files))
    functional = home / "tests" / "Functional"
    for file, theirs, ours in (
        ("ToxiProxy.php", "'listen' => ':'", "'listen' => '127.0.0.1:'"),
        ("Connection/ConnectionAuthTest.php", "'https://' . HOST . ':15671/'", f"'{broker.http_url}/'"),
    ):
        text = (functional / file).read_text()
        assert theirs in text
        (functional / file).write_text(text.replace(theirs, ours))
    httpful = repository("nategood/httpful", "v0.3.2") / "src" / "Httpful"
    write_autoload(home, {"PhpAmqpLib\\Tests": home / "tests", "PhpAmqpLib": home / "PhpAmqpLib", "Httpful": httpful})
    return home


def client() -> Path:
    return repository("php-amqplib/php-amqplib", f"v{VERSION}")


def write_autoload(home: Path, roots: dict[str, Path]) -> None:
    """Write the file that Composer would make, for the classes of these namespaces."""
    listed = ", ".join(f"'{prefix}\\\\' => '{root}'" for prefix, root in roots.items())
    (home / "vendor").mkdir()
    (home / "vendor" / "autoload.php").write_text(AUTOLOAD % f"[{listed}]")


def name_of(case: Xml.Element) -> str:
    return f"{case.get('classname', '').removeprefix('PhpAmqpLib.Tests.')}.{case.get('name')}"
