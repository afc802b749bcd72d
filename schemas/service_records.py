"""Decodes records of a log to which services also append, whose statements no broker checks."""

from dataclasses import replace

from rewindmq.schemas.amqp.properties import USER_ID, without_other_user, without_restored
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor


class SharedDecoder(Decoder):
    """A decoder that leaves out of a publish everything that only a broker may state."""

    def decode(self, record: bytes, bodies: bool = True, stripped: bool = False) -> tuple[int, Actor, Event]:
        """Decode a record, as `Decoder.decode` does."""
        decoded = super().decode(record, bodies, stripped)
        event = decoded[2]
        if isinstance(event, Published) and event.origin is None:
            honest = honest_properties(event.properties, decoded[1])
            if honest is not event.properties:
                return decoded[0], decoded[1], replace(event, properties=honest)
        return decoded


def honest_properties(raw: bytes, actor: Actor) -> bytes:
    """Return the properties of a publish without an origin, except those that only a broker may state.

    No broker checks a record that a service itself appends. So a header x-restored, which a restoration sets, does not
    count there, nor does a service's user_id (session 0) other than its own name; a broker checks that of clients.
    """
    raw = without_restored(raw)
    if actor.session == 0 and len(raw) >= 2 and raw[1] & 1 << USER_ID:
        return without_other_user(raw, actor.user)
    return raw
