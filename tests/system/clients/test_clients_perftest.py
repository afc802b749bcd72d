"""RabbitMQ's PerfTest (Java 17, Maven) as it is, a short run in each of the modes that services use: what was published
arrives."""

import pytest

from tests.support.perftest import MODES, jars, require_arrival
from tests.support.running import RunningBroker

__all__ = ["jars"]
pytestmark = [pytest.mark.java, pytest.mark.long]


@pytest.mark.rare(name=["confirms and acks"])
@pytest.mark.parametrize("name", MODES)
def test_what_is_published_arrives(broker: RunningBroker, name: str) -> None:
    require_arrival(broker, name)
