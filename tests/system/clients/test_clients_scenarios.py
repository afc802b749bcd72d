"""Every scenario has the outcome that a real RabbitMQ had (recorded by `python -m tests.clients.compare --record`), but
for the differences that docs/differences.md explains; and the same for each profile of another version."""

from pathlib import Path
from typing import Any

import pytest

from tests.clients.compare import report, require_expected, rewindmq_outcomes
from tests.clients.expected import EXPECTED
from tests.clients.scenarios import SCENARIOS
from tests.support.needs import needed
from tests.support.running import ROOT


@pytest.fixture(scope="module")
def came(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Profile -> outcomes of those scenarios that this run is about, each profile's all at one broker."""
    asked: dict[str, list[str]] = {}
    for item in request.session.items:
        if item.path == Path(__file__) and hasattr(item, "callspec"):
            asked.setdefault(item.callspec.params["profile"], []).append(item.callspec.params["name"])
    return {profile: rewindmq_outcomes(profile, names) for profile, names in asked.items()}


@pytest.mark.parametrize("profile", EXPECTED)
@pytest.mark.parametrize("name", SCENARIOS)
def test_outcome_is_that_of_rabbitmq(came: dict[str, dict[str, Any]], profile: str, name: str) -> None:
    require_expected(profile, name, came[profile][name])


def test_expected_differences_are_explained_and_name_real_scenarios() -> None:
    explained = (ROOT / "docs" / "differences.md").read_text()
    for expected in EXPECTED.values():
        for key, heading in expected.items():
            assert f"**{heading}" in explained
            assert key.partition(": ")[0] in SCENARIOS


@pytest.mark.slow
def test_the_record_is_still_true() -> None:
    """Both brokers now, side by side."""
    needed("rabbitmq-server")
    assert report("3.13", list(SCENARIOS), in_full=False) == 0
