"""A browser, a page of it, and the management API."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.browser import browser, faults, page
from tests.support.running import RunningBroker

__all__ = ["api", "browser", "faults", "page"]


@pytest.fixture
def api(broker: RunningBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as client:
        yield client
