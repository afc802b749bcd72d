"""Events that a fold leaves out, as if they had not happened: by message, user, session or time.

Only a scan of all partitions finds the messages caused by left-out messages (spark_replay/what_if/exclusion.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rewindmq.schemas.values import Actor

# Milliseconds; the name of a mark; the mark's offsets by partition (`resolved`)
Bound = int | str | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that fits the events which meet all of its conditions.

    `message`: (partition, id). Both times are inclusive; an event below the offsets of a mark is before it."""

    message: tuple[str, int] | None = None
    user: str | None = None
    session: int | None = None
    start: Bound | None = None
    end: Bound | None = None

    def fits(self, partition: str, offset: int, timestamp_ms: int, actor: Actor) -> bool:
        """Return True if every condition of the rule holds for this event."""
        if self.message is not None:
            return self.message == (partition, offset)
        return (
            (actor.user != "" or actor.session != 0)
            and self.user in (None, actor.user)
            and self.session in (None, actor.session)
            and (self.start is None or not _is_below(self.start, partition, offset, timestamp_ms))
            and (self.end is None or _is_below(self.end, partition, offset, timestamp_ms - 1))
        )


def _is_below(bound: Bound, partition: str, offset: int, timestamp_ms: int) -> bool:
    if isinstance(bound, int):
        return timestamp_ms < bound
    assert not isinstance(bound, str), f"where is the mark {bound}?"
    return offset < bound.get(partition, 0)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The events to leave out: those that a rule fits, and `also`, by partition, messages caused by these."""

    rules: tuple[Rule, ...]
    also: dict[str, frozenset[int]] = field(default_factory=dict)

    def leaves_out(self, partition: str, offset: int, timestamp_ms: int, actor: Actor) -> bool:
        """Return True if this event is left out."""
        if offset in self.also.get(partition, ()):
            return True
        return any(rule.fits(partition, offset, timestamp_ms, actor) for rule in self.rules)
