"""lapin's own tests, which its crate has: unit tests, and those for a broker over tokio and smol."""

import re

from tests.acceptance.brokers import ANY, Certificates
from tests.acceptance.fetching import crate
from tests.acceptance.request import Outcome, Request, by_name

VERSION = "4.12.3"
BINARY = re.compile(r"^\s*Running (?:unittests )?(?:src|tests)/(\w+)\.rs", re.MULTILINE)
TEST = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED)$", re.MULTILINE)


def run(request: Request, certificates: Certificates) -> Outcome:
    """Return the outcome of each test, with the name of its file. A file has a program of its own."""
    command = 'exec cargo test --no-fail-fast --lib --tests --features tokio,smol "$@" 2>&1'  # files are in stderr
    with request.start(certificates, ANY) as broker:
        chosen = [request.tests] if request.tests else []
        said = request.printed(
            ["sh", "-c", command, "sh", *chosen],
            crate("lapin", VERSION),
            {"AMQP_ADDR": f"{broker.amqp_url}%2f"},
        )
    _, *parts = BINARY.split(said)
    tests = by_name(
        (f"{file}::{name}", word == "ok")
        for file, said in zip(parts[::2], parts[1::2], strict=True)
        for name, word in TEST.findall(said)
    )
    if not tests:
        raise request.no_outcome()
    return Outcome(VERSION, tests)
