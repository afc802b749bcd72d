"""`python -m pytest tests/simulation --seed N` (or SIMULATION_SEED=N) runs the one history that N makes."""

import os
from collections.abc import Iterator

import pytest

from tests.simulation.nodes_story import story as story
from tests.support.quick_hashes import hashed_once


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    """Spare each broker of a history the 20 ms of a hash."""
    with hashed_once():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="run this one simulated history")


def seed_asked_for(config: pytest.Config) -> int | None:
    text = os.environ.get("SIMULATION_SEED")
    seed: int | None = config.getoption("--seed", default=None)
    return seed if seed is not None or text is None else int(text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "asked_seed" in metafunc.fixturenames:
        seed = seed_asked_for(metafunc.config)
        metafunc.parametrize("asked_seed", [] if seed is None else [seed])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One history was asked for: nothing else is run."""
    asked = seed_asked_for(config) is not None
    here = [item for item in items if "tests/simulation/" in item.nodeid or item.path.parent.name == "simulation"]
    dropped = [item for item in here if ("asked_seed" in getattr(item, "fixturenames", ())) != asked]
    if dropped:
        items[:] = [item for item in items if item not in dropped]
        config.hook.pytest_deselected(items=dropped)
