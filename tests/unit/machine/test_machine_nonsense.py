"""Any event with any values in its fields: the machine never raises, and stays whole.

Kafka's topics are open to other writers, so nothing that a record can say is impossible.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewindmq.projections.machine.data.reasons import RELOCATED
from rewindmq.projections.machine.machine import HANDLERS, MACHINE_VERSION, Machine
from rewindmq.schemas.events import EVENT_TYPES, Event, MachineUpgraded, PolicyApplied, Published
from rewindmq.schemas.placement_events import QueueName
from rewindmq.schemas.values import (
    Argument,
    CountedPartition,
    Encryption,
    MovedFrom,
    Origin,
    Policy,
    Route,
    SeenLetters,
    SeenRestored,
    UnroutedLetter,
)
from tests.support.annotations import annotations_of
from tests.support.events_for_tests import VHOST, Bench, policy, route
from tests.support.examples import examples

LONG = 2**63 - 1
numbers = st.one_of(st.integers(-2, 12), st.integers(-LONG - 1, LONG), st.sampled_from([101, 102, 2**31, 2**32, LONG]))
names = st.sampled_from(["q", "k", "e", "", "nowhere", "\udcff\x00"])
texts = st.one_of(names, st.sampled_from(["classic", "quorum", "stream", "nack", "longstr"]), st.text(max_size=3))
definitions = st.sampled_from(
    ["", "{", "[]", "null", '{"max-length":1}', '{"max-length":-1,"overflow":7}', '{"expires":1e99}']
)
policies = st.one_of(st.none(), st.builds(Policy, texts, definitions, numbers), st.just(policy("p", max_length=2)))
values = st.one_of(st.none(), st.booleans(), numbers, st.floats(), texts, st.binary(max_size=3))
argument_names = st.sampled_from(["x-max-length", "x-message-ttl", "x-expires", "x-overflow", "x-delivery-limit", "x"])
arguments = st.lists(st.builds(Argument, argument_names, texts, values), max_size=3).map(tuple)
single = st.integers(0, 20).map(lambda n: (n, n))
ranges = st.lists(st.one_of(st.tuples(numbers, numbers), single), max_size=4).map(tuple)
routes = st.one_of(
    st.just(route("q")),
    st.just(route("k", "q")),
    st.builds(Route, st.just(VHOST), texts, texts, st.lists(names, max_size=3).map(tuple)),
)
STRATEGIES: dict[object, st.SearchStrategy[object]] = {
    int: numbers,
    bool: st.booleans(),
    str: texts,
    bytes: st.binary(max_size=3),
    int | None: st.one_of(st.none(), numbers),
    Policy | None: policies,
    Route: routes,
    Origin | None: st.one_of(
        st.none(),
        st.builds(Origin, texts, texts, numbers, numbers, texts | st.just(RELOCATED), numbers),
        st.builds(
            Origin,
            st.just(VHOST),
            names,
            numbers,
            numbers,
            st.just(RELOCATED),
            numbers,
            st.just(""),
            numbers,
            st.booleans(),
            numbers,
            numbers,
        ),
    ),
    MovedFrom | None: st.one_of(
        st.none(),
        st.builds(
            MovedFrom,
            numbers,
            numbers,
            st.integers(-1, MACHINE_VERSION + 1),
            st.booleans(),
            st.lists(st.builds(SeenLetters, texts, names, numbers, numbers, numbers, st.booleans()), max_size=2).map(
                tuple
            ),
            st.lists(st.builds(SeenRestored, texts, texts, names, numbers, ranges), max_size=2).map(tuple),
        ),
    ),
    tuple[QueueName, ...]: st.just(()),  # of the metadata log
    tuple[CountedPartition, ...]: st.just(()),  # of the metadata log
    tuple[UnroutedLetter, ...]: st.lists(st.builds(UnroutedLetter, numbers, numbers), max_size=2).map(tuple),
    Encryption | None: st.none(),
    tuple[Argument, ...]: arguments,
    tuple[tuple[int, int], ...]: ranges,
    tuple[tuple[str, int], ...]: st.lists(st.tuples(texts, numbers), max_size=2).map(tuple),
    tuple[str, ...]: st.lists(texts, max_size=2).map(tuple),
}


def any_event(event_type: type[Event]) -> st.SearchStrategy[Event]:
    fields = annotations_of(event_type)
    strategies = {
        name: names if name == "queue" else st.just(VHOST) if name == "vhost" else STRATEGIES[kind]
        for name, kind in fields.items()
    }
    return st.builds(event_type, **strategies)


def is_known(event: Event) -> bool:
    """A version that is not known ends the fold (test_machine_versions)."""
    return not isinstance(event, MachineUpgraded) or event.machine_version <= MACHINE_VERSION


events = st.one_of([any_event(event_type) for event_type in EVENT_TYPES]).filter(is_known)
messages = any_event(Published)


def test_every_kind_of_event_is_tried() -> None:
    assert set(HANDLERS) <= set(EVENT_TYPES)


@settings(max_examples=examples(250), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.one_of(events, messages), st.integers(0, 3), st.integers(-5, 1000)), max_size=25))
def test_nothing_stops_the_fold(history: list[tuple[Event, int, int]]) -> None:
    bench = Bench()
    bench.declare("q", dead_letter_exchange="")
    bench.declare("k", type="quorum", delivery_limit=1, message_ttl=100)
    bench.declare("e", exclusive=True, owner=2, expires=500)
    bench.attach("q", prefetch=2)
    bench.attach("k", credit=1)
    bench.publish("q", "k", "e")
    for event, session, later in history:
        bench.now_ms += later
        bench.do(event, session)
    machine = bench.machine
    loaded = Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    loaded.validate()
    assert loaded.digest() == machine.digest()


def test_an_unreadable_policy_is_quarantined_and_the_old_one_stays() -> None:
    bench = Bench()
    queue = bench.declare("q", policy=policy("p", max_length=5))
    assert bench.do(PolicyApplied("/", "q", Policy("p", "[]", 2), None)) == [("quarantine",)]
    assert queue.settings.max_length == 5
