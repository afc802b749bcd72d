"""Contents of messages that are withheld from users who look: all of them, or the parts that masks of policies name.

    withheld = Withheld(contents=False, rules=(MaskRule.of(policy), ...))
    shown = withheld.hide(published, "orders")      # decrypted, and not yet cut

- Every message of an answer passes `hide`, whatever the question. A search compares what `hide` leaves, so that nobody
  finds out a hidden value by searching for it.
- Masks add up. A message has those of each policy that matches the queue in which it is looked at (in a search of a
  whole virtual host: a queue that has it), the queue that it died in, or its exchange. One that no queue took has those
  of all policies.
- A mask of a part of the body hides the whole body if that is not JSON, or is too long to be read here.
- The header `x-withheld` says what is hidden, as `x-erased` does for bodies that were erased.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from rewindmq.projections.machine.rules.legal_values import HEADER_MASK
from rewindmq.projections.rules.patterns import in_history
from rewindmq.projections.topology.policies import FOR_EXCHANGES
from rewindmq.schemas.amqp import properties, tables
from rewindmq.schemas.amqp.errors import Malformed
from rewindmq.schemas.events import Published
from rewindmq.schemas.json_values import compact_text
from rewindmq.schemas.metadata_events import OperatorPolicySet, PolicySet

MASKED: Final = "(masked)"
HEADER: Final = "x-withheld"
MOST_READ: Final = 262_144  # bytes of a body: they take a few milliseconds


@dataclass(frozen=True, slots=True)
class MaskRule:
    """The masks of a policy, by the pattern of its queues and exchanges."""

    pattern: str
    apply_to: str
    masks: tuple[str, ...]

    @classmethod
    def of(cls, policy: PolicySet | OperatorPolicySet) -> Self:
        """Return the rule of a policy; its `masks` are empty if it has none."""
        masks = json.loads(policy.definition).get("mask", ())
        return cls(policy.pattern, policy.apply_to, tuple(masks))

    def fits(self, queues: Iterable[str], exchange: str | None) -> bool:
        """Return True if the policy matches one of the queues, or the exchange (None: there is none to match)."""
        pattern = in_history(self.pattern)
        if self.apply_to != "exchanges" and any(map(pattern.found_in, queues)):
            return True
        return exchange is not None and self.apply_to in FOR_EXCHANGES and pattern.found_in(exchange)


@dataclass(frozen=True, slots=True)
class Withheld:
    """The contents that a user does not see in a virtual host. `contents`: all bodies and headers."""

    contents: bool = False
    rules: tuple[MaskRule, ...] = ()

    def hide(self, published: Published, queue: str | None = None) -> Published:
        """Return the message as the user may see it. `queue`: where it is looked at. Its size stays the true one."""
        if self.contents:
            parts, _ = _parts(published.properties) or ({}, {})
            return _hidden(published, parts, {}, ("headers", "body"), b"")
        masks = self._masks_of(published, queue) if self.rules else set()
        return _masked(published, masks) if masks else published

    def in_search(self, queue: str | None) -> set[str]:
        """Return the masks by which a search is refused: of this queue; None: of all."""
        return {mask for rule in self.rules if queue is None or rule.fits((queue,), None) for mask in rule.masks}

    def _masks_of(self, published: Published, queue: str | None) -> set[str]:
        route, origin = published.route, published.origin
        queues = {*(route.queues if queue is None else (queue,)), *(() if origin is None else (origin.queue,))}
        rules = [rule for rule in self.rules if not queues or rule.fits(queues, route.exchange)]
        return {mask for rule in rules for mask in rule.masks}


NOTHING: Final = Withheld()


def _masked(published: Published, masks: set[str]) -> Published:
    names = {mask.removeprefix(HEADER_MASK) for mask in masks if mask.startswith(HEADER_MASK)}
    paths = [mask.split(".")[1:] for mask in masks if not mask.startswith(HEADER_MASK)]
    read = _parts(published.properties)
    parts, headers = read or ({}, {})
    found = names if read is None else names & headers.keys()  # bytes that nobody can read may hold any header
    body, count = _without(published.body, paths) if paths and published.body else (published.body, 0)
    hidden = [*(("headers",) if found else ()), *(("body",) if count else ())]
    if not hidden:
        return published if body == published.body else replace(published, body=body)
    masked = tables.longstr(MASKED)
    return _hidden(published, parts, headers | dict.fromkeys(found, masked), hidden, body)


def _parts(raw: bytes) -> tuple[dict[int, bytes], dict[str, bytes]] | None:
    """Return the properties by flag bit, and the headers by name; None for bytes that cannot be read."""
    try:
        parts = properties.split(raw) if raw else {}
        return parts, properties.split_headers(parts)
    except Malformed:
        return None


def _hidden(
    published: Published, parts: dict[int, bytes], headers: dict[str, bytes], what: Iterable[str], body: bytes
) -> Published:
    """Return the message with these headers and this body, and with one more header, which says `what` is hidden."""
    table = properties.join_headers(headers | {HEADER: tables.longstr(", ".join(what))})
    raw = properties.join(parts | {properties.HEADERS: table})
    return replace(published, properties=raw, body=body)


def _without(body: bytes, paths: list[list[str]]) -> tuple[bytes, int]:
    """Return the body without the values at the paths, and how many these are. It is written anew in any case: of a
    name that is there twice, only the last value was looked at."""
    if [] not in paths and len(body) <= MOST_READ:
        try:
            content = json.loads(body)
            count = sum(_mask(content, path) for path in paths)
            return compact_text(content).encode(), count
        except (ValueError, RecursionError):  # it is not JSON, or not such as can be written again
            pass
    return MASKED.encode(), 1


def _mask(content: Any, path: list[str]) -> int:
    """Replace the values at the path, in each element of a list on the way. Returns how many there were."""
    if isinstance(content, list):
        return sum(_mask(each, path) for each in content)
    name, *rest = path
    if not isinstance(content, dict) or name not in content:
        return 0
    if rest:
        return _mask(content[name], rest)
    content[name] = MASKED
    return 1
