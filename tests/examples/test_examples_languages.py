"""The services of examples/ in other languages, as their first lines say: what one publishes another one consumes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import needed
from tests.support.running import ROOT, RunningBroker

pytestmark = pytest.mark.long

# Builds each example once.
MADE_BY = {
    "go": ("go", "build", "-o", "service", "."),
    "node": ("npm", "ci", "--silent"),
    "java": ("mvn", "-q", "--batch-mode", "compile"),
}
# Runs it, with the words of its first lines behind.
RUN_BY = {
    "go": ("./service",),
    "node": ("node", "service.js"),
    "java": ("mvn", "-q", "--batch-mode", "exec:java"),
}


COLOUR = re.compile(r"\x1b\[\d*m\n?")  # Maven resets the colour of a terminal that is not there


def done(command: list[str], place: Path) -> "subprocess.CompletedProcess[str]":
    finished = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    finished.stdout = COLOUR.sub("", finished.stdout)
    return finished


class Service:
    """An example that is built."""

    def __init__(self, language: str, place: Path) -> None:
        builder, *how = MADE_BY[language]
        self._command = RUN_BY[language]
        self._place = place / language
        shutil.copytree(ROOT / "examples" / language, self._place, ignore=shutil.ignore_patterns("node_modules"))
        made = done([needed(builder), *how], self._place)
        assert made.returncode == 0, made.stdout + made.stderr

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        if self._command[0] == "mvn":
            return done([*self._command, f"-Dexec.args={' '.join(words)}"], self._place)
        return done([*self._command, *words], self._place)


@pytest.fixture(scope="module", params=MADE_BY)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Service:
    return Service(request.param, tmp_path_factory.mktemp("examples"))


def python(*words: str) -> list[str]:
    finished = done([sys.executable, "examples/service.py", *words], ROOT)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout.splitlines()


def test_what_one_language_publishes_another_one_consumes(service: Service, broker: RunningBroker) -> None:
    url = broker.amqp_url.rstrip("/")
    published = service.run("publish", "5", url)
    assert published.stdout.splitlines() == [f"confirmed: order {n}" for n in range(1, 6)], published.stderr
    assert python("consume", "5", url) == [f"done: order {n} (order-{n})" for n in range(1, 6)]
    python("publish", "3", url)
    consumed = service.run("consume", "2", url)
    assert consumed.stdout.splitlines() == [f"done: order {n} (order-{n})" for n in (1, 2)], consumed.stderr
    assert python("consume", "1", url) == ["done: order 3 (order-3)"]  # what was not acked is there


def test_a_broker_that_is_not_there_is_said(service: Service) -> None:
    refused = service.run("publish", "1", "amqp://guest:guest@127.0.0.1:1")
    assert refused.returncode != 0
    assert "refused" in (refused.stdout + refused.stderr).lower()
