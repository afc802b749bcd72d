"""Scopes of tokens: which operations they allow. As RabbitMQ's rabbit_oauth2_scope.erl and wildcard.erl read them.

    PREFIX.configure:VHOST/NAME        PREFIX is the resource server id
    PREFIX.write:VHOST/NAME[/KEY]      KEY is of routing keys of topic exchanges; without it none of them is allowed
    PREFIX.read:VHOST/NAME[/KEY]
    PREFIX.tag:TAG                     administrator, monitoring, policymaker, management

Rules of this file
- A part may have wildcards (`*`), and is percent-encoded: `%2F` is the vhost /, `%2A` a star itself.
- A wildcard takes as little as it can, and no other choice is tried. So `*.x` does not match `a.x.x`, as in RabbitMQ.
- A scope of another form, and a part that is not percent-encoded rightly, allows nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

REMEMBERED_DECISIONS: Final = 256
PERMISSIONS: Final = ("configure", "write", "read")
BAD_ENCODING: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")

Pattern = tuple[str, ...]  # the texts between the wildcards


@dataclass(frozen=True, slots=True)
class Allowed:
    """One scope of a permission."""

    vhost: Pattern
    name: Pattern
    key: Pattern | None


class Scopes:
    """The scopes of one token. `tags`: of its user, sorted."""

    def __init__(self, scopes: Iterable[str], resource_server_id: str) -> None:
        prefix = resource_server_id + "."
        ours = {scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)}
        self.tags = tuple(sorted(scope.removeprefix("tag:") for scope in ours if scope.startswith("tag:")))
        self._allowed: dict[str, list[Allowed]] = {permission: [] for permission in PERMISSIONS}
        self._decided: dict[tuple[str, str, str], bool] = {}
        for scope in sorted(ours):
            permission, _, resource = scope.partition(":")
            allowed = _allowed(resource) if permission in PERMISSIONS else None
            if allowed is not None:
                self._allowed[permission].append(allowed)

    def may_enter(self, vhost: str) -> bool:
        """Return True if any scope is about this vhost."""
        return any(matches(vhost, each.vhost) for scopes in self._allowed.values() for each in scopes)

    def may(self, permission: str, vhost: str, name: str) -> bool:
        """Return True if a scope grants this permission on a queue or an exchange."""
        key = (permission, vhost, name)
        found = self._decided.get(key)
        if found is None:
            scopes = self._allowed[permission]
            found = any(matches(vhost, each.vhost) and matches(name, each.name) for each in scopes)
            if len(self._decided) >= REMEMBERED_DECISIONS:
                self._decided.clear()
            self._decided[key] = found
        return found

    def may_use_key(self, permission: str, vhost: str, exchange: str, routing_key: str) -> bool:
        """Return True if a scope grants this permission for a routing key of a topic exchange."""
        return any(
            each.key is not None
            and matches(vhost, each.vhost)
            and matches(exchange, each.name)
            and matches(routing_key, each.key)
            for each in self._allowed[permission]
        )


def _allowed(resource: str) -> Allowed | None:
    parts = resource.split("/")
    if len(parts) not in (2, 3):
        return None
    patterns = [found for found in map(pattern, parts) if found is not None]
    if len(patterns) < len(parts):
        return None
    return Allowed(patterns[0], patterns[1], patterns[2] if len(parts) == 3 else None)


def pattern(text: str) -> Pattern | None:
    """Return the texts between the wildcards. None: the text is not percent-encoded rightly."""
    if BAD_ENCODING.search(text):
        return None
    try:
        return tuple(unquote_to_bytes(part.replace("+", " ")).decode() for part in text.split("*"))
    except UnicodeDecodeError:
        return None


def matches(text: str, pattern: Pattern) -> bool:
    """Return True if the whole text matches the pattern (wildcard.erl `scan/4`)."""
    first, *rest = pattern
    if not text.startswith(first):
        return False
    at = len(first)
    for index, part in enumerate(rest):
        if not part and index == len(rest) - 1:
            return True
        if at == len(text):
            return False
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return at == len(text)
