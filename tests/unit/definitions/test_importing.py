"""Any document at all: it is refused with a reason and changes nothing, or is imported, comes out again, and a second
import of what came out changes nothing."""

import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.definitions.document import export
from rewindmq.engine.definitions.load import Import
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.http.pieces import members
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Harness
from tests.support.definitions import WHOLE
from tests.support.examples import examples

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(("", "v", "q1", "x", "amq.x", "/", "quorum", "stream", "undefined", "queue", "(", "é\n")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("name", "vhost", "x-max-length", "x-queue-type", "a")), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, the document itself first."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*path, number))


PLACES = list(places(WHOLE))[1:]


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """The whole one with some places changed, left out or doubled."""
    document: Any = copy.deepcopy(WHOLE)
    for place in draw(st.lists(st.sampled_from(PLACES), max_size=3)):
        home = document
        try:
            for step in place[:-1]:
                home = home[step]
            match draw(st.sampled_from(("change", "leave out", "double"))):
                case "change":
                    home[place[-1]] = draw(JSON)
                case "leave out":
                    del home[place[-1]]
                case "double":
                    home.append(copy.deepcopy(home[place[-1]]))
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # an earlier change took the place away
    return document


@pytest.fixture(scope="module")
def h(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with Harness(tmp_path_factory.mktemp("importing")) as harness:
        yield harness


def empty(h: Harness) -> None:
    """Back to what a new broker holds."""
    topology = h.broker.topology
    for vhost in [name for name in topology.vhosts if name != "/"]:
        h.broker.vhosts.delete(Actor("guest", 0), vhost)
    for name in [name for name in topology.users if name != "guest"]:
        h.broker.access.users.delete(Actor("guest", 0), name)
    for name in list(topology.global_parameters):
        h.broker.parameters.clear_global(Actor("guest", 0), name)


def real(h: Harness) -> Broker:
    """The broker itself, whose methods are coroutines."""
    found: Broker = h.broker._broker
    return found


def carry_out(h: Harness, document: Any) -> None:
    async def work() -> None:
        await Import(real(h), Actor("guest", 0), document).carry_out()

    h.loop.run_until_complete(asyncio.wait_for(work(), 60))


def exported(h: Harness) -> dict[str, Any]:
    """As it goes over the wire."""

    async def work() -> str:
        slices = Work(real(h).host.loop_share)
        return "".join([piece async for piece in members(slices, await export(real(h), slices))])

    found: dict[str, Any] = json.loads(h.loop.run_until_complete(work()))
    return found


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(document=documents())
def test_any_document(h: Harness, document: Any) -> None:
    empty(h)
    before = h.broker.topology.digest()
    try:
        carry_out(h, document)
    except AmqpError:
        assert h.broker.topology.digest() == before
        return
    carry_out(h, document)
    found, digest = exported(h), h.broker.topology.digest()
    carry_out(h, found)
    assert (exported(h), h.broker.topology.digest()) == (found, digest)
