"""Publishes that came through no door of a broker: by services that append to the log themselves."""

import pytest

from rewindmq.projections.machine.data.effects import Effect, Quarantine
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Origin
from tests.support.events_for_tests import VHOST, Bench, route

SERVICE = Actor("billing", 0)
NO_AMQP = [b"", b"\x80\x00", b"\x10\x00\x02\x02", b"\x00\x01"]


def published(properties: bytes, origin: Origin | None = None) -> Published:
    return Published(route("q"), properties, persistent=True, origin=origin, body=b"", body_size=3)


@pytest.mark.parametrize("properties", NO_AMQP)
def test_what_no_consumer_could_be_sent_is_quarantined(properties: bytes) -> None:
    """A consumer would lose its connection, the message would go back, and the next consumer would lose its own."""
    bench = Bench()
    bench.declare("q")
    effects: list[Effect] = []
    bench.machine.apply(bench.offset, bench.now_ms, SERVICE, published(properties), effects)
    (quarantined,) = effects
    assert isinstance(quarantined, Quarantine)
    assert (quarantined.offset, quarantined.event_type) == (bench.offset, "Published")
    assert "properties" in quarantined.reason
    assert bench.machine.by_name[(VHOST, "q")].messages_ready == 0
    bench.machine.apply(bench.offset + 1, bench.now_ms, SERVICE, published(b"\x00\x00"), [])
    assert bench.machine.by_name[(VHOST, "q")].messages_ready == 1


@pytest.mark.parametrize("properties", NO_AMQP)
def test_what_came_through_a_door_is_not_looked_at_again(properties: bytes) -> None:
    """Whatever is in old histories: a client's publish, and a dead letter, whose properties the broker wrote."""
    bench = Bench()
    bench.declare("q")
    bench.do(published(properties), 7)
    bench.do(published(properties, Origin(VHOST, "source", 1, 2, "expired", 1)), 0)
    assert bench.machine.by_name[(VHOST, "q")].messages_ready == 2
