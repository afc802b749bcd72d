"""A broker on a data directory of its own, without sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_harness import Harness


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path) as harness:
        yield harness
