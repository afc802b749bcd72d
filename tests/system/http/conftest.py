"""A client of the management API of a real broker, and names that no other test uses."""

import itertools
from collections.abc import Iterator

import httpx
import pytest

from tests.support.running import RunningBroker

NUMBERS = itertools.count()


@pytest.fixture
def api(broker: RunningBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"n{next(NUMBERS)}"


@pytest.fixture
def queue(api: httpx.Client, name: str) -> str:
    assert api.put(f"/queues/%2F/{name}", json={"durable": True}).status_code == 201
    return name
