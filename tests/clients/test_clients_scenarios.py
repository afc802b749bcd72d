"""Every scenario has the outcome that a real RabbitMQ 3.10.8 had (recorded by `python -m tests.clients.compare
--record`), but for the differences that docs/differences.md explains."""

import json

import pytest

from tests.bench.peers import RABBITMQ
from tests.clients.compare import EXPECTED, RECORDED, compare, outcome
from tests.clients.scenarios import SCENARIOS
from tests.running import ROOT, RunningBroker


@pytest.mark.parametrize("name", SCENARIOS)
def test_outcome_is_that_of_rabbitmq(broker: RunningBroker, name: str) -> None:
    recorded = json.loads(RECORDED.read_text())
    came = outcome(broker.amqp_port, name)
    if name in EXPECTED:
        assert came != recorded[name], "no difference any more: take it out of EXPECTED and docs/differences.md"
    else:
        assert came == recorded[name]


def test_expected_differences_are_explained() -> None:
    explained = (ROOT / "docs" / "differences.md").read_text()
    for heading in EXPECTED.values():
        assert f"**{heading}" in explained


@pytest.mark.slow
@pytest.mark.skipif(not RABBITMQ.exists(), reason="Debian's package rabbitmq-server is not installed")
def test_the_record_is_still_true() -> None:
    """Both brokers now, side by side."""
    for name, (theirs, ours) in compare(list(SCENARIOS)).items():
        assert (theirs == ours) == (name not in EXPECTED), f"{name}: RabbitMQ {theirs}, RewindMQ {ours}"
