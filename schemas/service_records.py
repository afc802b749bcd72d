"""Decodes records of a log to which services append, too: they pass no broker that would check what they say."""

from dataclasses import replace

from rewindmq.schemas.amqp.properties import USER_ID, without_other_user, without_restored
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor


class SharedDecoder(Decoder):
    """A decoder that leaves out of a publish what only a broker may say."""

    def decode(self, record: bytes, bodies: bool = True, stripped: bool = False) -> tuple[int, Actor, Event]:
        """Decode a record, as `Decoder.decode`."""
        decoded = super().decode(record, bodies, stripped)
        event = decoded[2]
        if isinstance(event, Published) and event.origin is None:
            honest = honest_properties(event.properties, decoded[1])
            if honest is not event.properties:
                return decoded[0], decoded[1], replace(event, properties=honest)
        return decoded


def honest_properties(raw: bytes, actor: Actor) -> bytes:
    """Return the properties of a publish without an origin, without what only a broker may say.

    A service that appends a record to the log itself passes no broker. So a header x-restored, which a restoration
    sets, does not count there, and no user_id of a service (session 0) but its own name: of clients a broker checks it.
    """
    raw = without_restored(raw)
    if actor.session == 0 and len(raw) >= 2 and raw[1] & 1 << USER_ID:
        return without_other_user(raw, actor.user)
    return raw
