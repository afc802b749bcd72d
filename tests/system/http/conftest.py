"""Names that no other test uses, and a queue."""

import itertools

import httpx2
import pytest

NUMBERS = itertools.count()


@pytest.fixture
def name() -> str:
    return f"n{next(NUMBERS)}"


@pytest.fixture
def queue(api: httpx2.Client, name: str) -> str:
    assert api.put(f"/queues/%2F/{name}", json={"durable": True}).status_code == 201
    return name
