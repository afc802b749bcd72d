"""Limits of vhosts and users, and a vhost's default queue type: RabbitMQ 3.13's texts."""

import pytest

from rewindmq.engine.broker import limits
from rewindmq.engine.errors import NotAllowed, PreconditionFailed
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Harness, args, refusal


def types(h: Harness, name: str) -> tuple[str, list[tuple[str, object]]]:
    queue = h.queue(name)
    return queue.type, [(argument.name, argument.value) for argument in queue.arguments]


def test_a_vhosts_default_queue_type_is_taken_where_it_fits(h: Harness) -> None:
    session = h.session()
    h.declare(session, "before")
    h.broker.vhosts.create(Actor("guest", 0), "/", "", (), "quorum")
    h.declare(session, "q")
    assert types(h, "q") == ("quorum", [("x-queue-type", "quorum")])
    h.declare(session, "exclusive", durable=False, exclusive=True)
    assert types(h, "exclusive") == ("classic", [("x-queue-type", "classic")])
    h.declare(session, "said", arguments=args(x_queue_type="classic"))
    assert types(h, "said")[0] == "classic"
    assert types(h, "before") == ("classic", [])
    h.declare(session, "q", arguments=args(x_queue_type="quorum"))
    h.broker.vhosts.create(Actor("guest", 0), "/", "", (), "")
    h.declare(session, "plain")
    assert types(h, "plain") == ("classic", [])
    named = h.broker.queues.declare(session, "", False, False, True, True, ())
    assert named.type == "classic"


def test_a_vhost_has_so_many_queues_and_no_more(h: Harness) -> None:
    session = h.session()
    h.broker.parameters.set(Actor("guest", 0), "/", "vhost-limits", "limits", {"max-queues": 1})
    h.declare(session, "q")
    h.declare(session, "q")
    with refusal(PreconditionFailed, "cannot declare queue 'r': queue limit in vhost '/' (1) is reached"):
        h.declare(session, "r")
    h.broker.parameters.set(Actor("guest", 0), "/", "vhost-limits", "limits", {"max-queues": -1})
    h.declare(session, "r")
    h.broker.parameters.clear(Actor("guest", 0), "/", "vhost-limits", "limits")
    h.declare(session, "s")


def test_connections_and_channels_are_counted(h: Harness) -> None:
    topology, sessions = h.broker.topology, h.broker.sessions.by_id
    first = h.session()
    first.close = lambda reason: None  # as a connection does; sessions of HTTP requests don't
    h.session()
    limits.check_connection(topology, sessions.values(), "guest", "/")
    h.broker.parameters.set(Actor("guest", 0), "/", "vhost-limits", "limits", {"max-connections": 1})
    with refusal(NotAllowed, "access to vhost '/' refused for user 'guest': connection limit (1) is reached"):
        limits.check_connection(topology, sessions.values(), "guest", "/")
    h.broker.parameters.set(Actor("guest", 0), "/", "vhost-limits", "limits", {"max-connections": 2})
    limits.check_connection(topology, sessions.values(), "guest", "/")
    h.broker.access.users.set_limits(Actor("guest", 0), "guest", {"max-connections": 1, "max-channels": 0})
    with refusal(NotAllowed, "connection refused for user 'guest': user connection limit (1) is reached"):
        limits.check_connection(topology, sessions.values(), "guest", "/")
    limits.check_connection(topology, sessions.values(), "other", "/")
    refused = "number of channels opened for user 'guest' has reached the maximum allowed user limit of (0)"
    with refusal(NotAllowed, refused):
        limits.check_channel(topology, sessions.values(), "guest")
    limits.check_channel(topology, sessions.values(), "other")
    h.broker.access.users.set_limits(Actor("guest", 0), "guest", {})
    limits.check_channel(topology, sessions.values(), "guest")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max-channels": "1"}, 'max-channels should be a number, actually was <<"1">>'),
        ({"max-channels": True}, "max-channels should be a number, actually was true"),
        ({"max-queues": 1}, 'Unrecognised terms [{<<"max-queues">>,1}] in user-limits'),
        (5, "user-limits not a list 5"),
    ],
)
def test_limits_that_are_none(h: Harness, given: object, text: str) -> None:
    with refusal(PreconditionFailed, text):
        h.broker.access.users.set_limits(Actor("guest", 0), "guest", given)
