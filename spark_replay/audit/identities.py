"""Judges duplicates as an auditor does: from the headers, without asking the machine (B-61, B-62).

Written apart from `rewindmq.projections.machine.rules.deduplication` on purpose. A queue drops a message with the id of
one that is in it (`inside`), or of one of the last that came through the same exchange (`through`). Where the books
cannot know, they do not judge: messages before a base, and an exchange whose x-cache-size changed, or that is one of
more than 16 of the queue.
"""

import json
from collections.abc import Container

from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.properties import headers_of
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Argument, Policy

Identity = tuple[str, bytes]  # kind, value: a text, or a number's as Python writes it
_FOR_EVER = 1 << 62
_MOST_EXCHANGES = 16
_MOST = 1_000_000


def drops_duplicates(kind: str, arguments: tuple[Argument, ...], policy: Policy | None) -> bool:
    """Return True if a queue drops messages with the id of one that is in it. Its policy overrides its argument."""
    if kind not in ("classic", "quorum"):
        return False
    ruled = json.loads(policy.definition).get("x-message-deduplication") if policy else None
    if isinstance(ruled, bool):
        return ruled
    asked = [argument.value for argument in arguments if argument.name == "x-message-deduplication"]
    return asked[:1] == [True]


class Identities:
    """The ids of one queue. `since`: messages before it are not known, because the books began later."""

    def __init__(self, since: int) -> None:
        self.since = since
        self.inside: dict[Identity, tuple[int, int]] = {}  # the last message of an id, and when it expires
        # By exchange: the last message of an id, until when it is remembered, how many came before it
        self.through: dict[str, dict[Identity, tuple[int, int, int]]] = {}
        self.counts: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.sure_from: dict[str, int] = {}  # by exchange: how many had come when its size changed

    def dropped(self, event: Published, original: int, once: bool, now_ms: int, there: Container[int]) -> str:
        """Return the fault in dropping a message as a duplicate of `original`; "" if there is none."""
        identity, _ = _identity(event)
        asked = event.route.duplicates
        if identity is None:
            return "dropped as a duplicate, but it has no id"
        if original < self.since:
            return ""
        if asked is not None:
            known = self.through.get(asked.exchange, {}).get(identity)
            if known is not None and known[0] == original and known[1] > now_ms:
                return ""
        inside = self.inside.get(identity)
        if once and inside is not None and inside[0] == original and inside[1] > now_ms and original in there:
            return ""
        return f"dropped as a duplicate of {original}, which has another id or is not remembered"

    def taken(
        self, message_id: int, event: Published, once: bool, now_ms: int, expires_ms: int | None, there: Container[int]
    ) -> str:
        """Book a message that the queue took. What is wrong with that; "" if nothing is."""
        identity, ttl_ms = _identity(event)
        if identity is None:
            return ""
        wrong, asked = "", event.route.duplicates
        if once:
            before = self.inside.get(identity)
            if before is not None and before[1] > now_ms and before[0] in there:
                wrong = f"taken, but message {before[0]} with the same id is there"
            self.inside[identity] = message_id, _FOR_EVER if expires_ms is None else expires_ms
        if asked is None:
            return wrong
        exchange, size = asked.exchange, max(1, min(asked.size, _MOST))
        count = self.counts.get(exchange, 0)
        if self.sizes.get(exchange, size) != size:
            self.sure_from[exchange] = count
        self.sizes[exchange] = size
        window = self.through.setdefault(exchange, {})
        first = window.get(identity, (0, 0, 0))
        sure = len(self.through) <= _MOST_EXCHANGES and first[2] >= self.sure_from.get(exchange, 0)
        if sure and first[1] > now_ms and count - first[2] <= size:
            wrong = f"taken, but message {first[0]} with the same id came through {exchange!r}"
        ttl_ms = asked.ttl_ms if ttl_ms is None else ttl_ms
        window.pop(identity, None)
        window[identity] = message_id, _FOR_EVER if ttl_ms is None else now_ms + max(0, ttl_ms), count
        self.counts[exchange] = count + 1
        while window:
            oldest = next(iter(window))
            if count + 1 - window[oldest][2] <= size:
                break
            del window[oldest]
        return wrong

    def tidy(self, there: Container[int], count: int) -> None:
        """Forget the ids of messages that left, when they are most of those that are known."""
        if len(self.inside) > 2 * count + 1_000:
            self.inside = {identity: known for identity, known in self.inside.items() if known[0] in there}


def _identity(event: Published) -> tuple[Identity | None, int | None]:
    """Return the message's id, with its type, and the time for which it wants to be remembered."""
    identity: Identity | None = None
    ttl_ms: int | None = None
    try:
        headers = headers_of(event.properties)
    except PropertyError:
        return None, None
    for name, kind, value in headers:
        number = isinstance(value, int) and kind != "bool"
        if name == "x-cache-ttl":
            ttl_ms = max(0, value) if isinstance(value, int) and number else None
        elif name == "x-deduplication-header":
            identity = None
            if kind not in ("table", "array", "decimal"):
                text = value if isinstance(value, bytes) else f"{value}".encode()
                identity = "number" if number else "text" if kind in ("longstr", "binary") else kind, text
    return identity, ttl_ms
