"""Events between processes: what is unpickled is what was pickled, on both builds."""

import pickle

from hypothesis import given

from rewindmq.schemas.events import EVENT_TYPES, Event
from rewindmq.schemas.values import Actor
from tests.support.strategies import actors, events, plain


@given(actors, events)
def test_an_actor_and_an_event_come_as_they_went(actor: Actor, event: Event) -> None:
    there, back = pickle.loads(pickle.dumps((actor, event)))
    assert (there, plain(back)) == (actor, plain(event))
    assert type(back) in EVENT_TYPES
