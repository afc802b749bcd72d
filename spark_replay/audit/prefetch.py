"""Counts the messages that consumers hold: each at most its own prefetch, all of a channel together the channel's.

`limited` names, of limited channels only, the consumers that share the limit. A channel's limit binds the consumers
that are attached under it and, when it is set later, those that were there before, except at quorum queues (S-097).

A consumer that is alone at its queue may hold a lookahead beyond its prefetch
(projections/machine/events/lookahead.py).
"""

from rewindmq.schemas.events import ConsumerAttached, Credited
from rewindmq.schemas.values import EPOCH_SHIFT

Channel = tuple[int, int]  # session, number


class Prefetches:
    """The prefetch limits of one partition's consumers and channels, and the messages that consumers hold."""

    def __init__(self) -> None:
        self.own: dict[int, int] = {}  # attached consumers with a prefetch of their own
        self.queues: dict[int, tuple[str, str]] = {}  # of these: vhost, queue
        self.lookaheads: dict[int, int] = {}  # of these: how many it may hold beyond its prefetch
        self.holding: dict[int, int] = {}  # consumer -> how many messages it has
        self.channels: dict[Channel, dict[int, bool]] = {}  # its consumers, gone ones too -> whether of a quorum queue
        self.limits: dict[Channel, int] = {}
        self.limited: dict[int, Channel] = {}  # consumer -> the channel whose limit it shares

    def attached(self, session: int, event: ConsumerAttached, quorum: bool) -> None:
        """Add a consumer. `quorum`: its queue is a quorum queue."""
        key, channel = (event.vhost, event.queue), (session, event.channel)
        self.end_lookaheads(key)
        self.add(event.consumer, key, channel, 0 if event.no_ack else event.prefetch, quorum)
        if event.global_prefetch:
            self.share(event.consumer, channel, event.global_prefetch)

    def add(self, consumer: int, key: tuple[str, str], channel: Channel, prefetch: int, quorum: bool) -> None:
        """Add a consumer. `prefetch`: its own; 0: none. `quorum`: its queue is a quorum queue."""
        if prefetch:
            self.own[consumer] = prefetch
            self.queues[consumer] = key
        self.channels.setdefault(channel, {})[consumer] = quorum

    def share(self, consumer: int, channel: Channel, limit: int) -> None:
        """Let a consumer share the limit of its channel."""
        self.limits[channel] = limit
        self.limited[consumer] = channel

    def look_ahead(self, consumer: int, more: int) -> None:
        """Let a consumer with a prefetch hold this number of messages more."""
        if consumer in self.own and more > 0:
            self.lookaheads[consumer] = more
        else:
            self.lookaheads.pop(consumer, None)

    def believe_held(self, consumer: int, messages: int) -> None:
        """Assume that a consumer holds this number of messages."""
        if messages:
            self.holding[consumer] = messages

    def credited(self, event: Credited, alone: bool) -> None:
        """Change the lookahead of a consumer with a prefetch.

        `alone`: its queue has no other consumer, and is not paused."""
        self.look_ahead(event.consumer, event.credit if alone else 0)

    def end_lookaheads(self, key: tuple[str, str]) -> None:
        """Let no consumer of a queue hold more than its prefetch: it was paused, or another consumer came."""
        for consumer in [each for each in self.lookaheads if self.queues[each] == key]:
            del self.lookaheads[consumer]

    def limit(self, channel: Channel, prefetch: int) -> None:
        """Set the limit that a channel's consumers share; 0: no limit."""
        if channel not in self.channels:
            return
        for consumer, quorum in self.channels[channel].items():
            if prefetch and not quorum:
                self.limited[consumer] = channel
            elif not prefetch:
                self.limited.pop(consumer, None)
        self.limits[channel] = prefetch

    def closed(self, session: int, number: int) -> None:
        """Close a connection (`number` 0), or one channel."""
        self._gone([each for each in self.channels if each[0] == session and number in (0, each[1])])

    def lost(self, epoch: int) -> None:
        """Lose a node, with all its connections."""
        self._gone([each for each in self.channels if each[0] >> EPOCH_SHIFT == epoch])

    def _gone(self, channels: list[Channel]) -> None:
        for channel in channels:
            for consumer in self.channels.pop(channel):
                self.own.pop(consumer, None)
                self.queues.pop(consumer, None)
                self.lookaheads.pop(consumer, None)
                self.limited.pop(consumer, None)
            self.limits.pop(channel, None)

    def holds(self, consumer: int) -> str | None:
        """Note that the consumer got a message. Returns what is wrong with that, or None."""
        held = self.holding[consumer] = self.holding.get(consumer, 0) + 1
        own = self.own.get(consumer, held)
        if held > own and held > own + self.lookaheads.get(consumer, 0):
            return f"consumer {consumer} has {held} messages, its prefetch is {own}"
        channel = self.limited.get(consumer) if self.limited else None
        if channel is None:
            return None
        together = sum(self.holding.get(each, 0) for each in self.channels[channel] if each in self.limited)
        if together > self.limits[channel]:
            limit = self.limits[channel]
            return f"the consumers of channel {channel[1]} have {together} messages, their prefetch is {limit}"
        return None

    def lets_go(self, consumer: int | None, count: int = 1) -> None:
        """Note that the consumer no longer holds some of its messages."""
        held = 0 if consumer is None else self.holding.get(consumer, 0)
        if consumer is None or not held:
            return
        if held > count:
            self.holding[consumer] = held - count
        else:
            del self.holding[consumer]
