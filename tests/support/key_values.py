"""Values of policy keys for random histories: small ones, so that limits are met often.

The seeded histories (random_history.py) and hypothesis (for the naive model) both draw from this table. A key that is
not named here has values of its kind and a chance of 10 %, so a new row of the table of keys needs nothing. Name it
here if these values would leave queues idle.
"""

from collections.abc import Iterable, Iterator

from rewindmq.projections.machine.rules.legal_values import Age, Choice, Flag, Number, Values
from rewindmq.projections.machine.rules.policy_keys import DEDUPLICATES, KEYS, Key

Drawn = tuple[str, float, tuple[object, ...]]  # the key as `arguments` and `policy` take it, its chance, its values

# The fold does not ask for the first. The second needs messages with ids, and those who make ids give it.
NOT_DRAWN = ("consumer-timeout", DEDUPLICATES)
CHOSEN: dict[str, tuple[float, tuple[object, ...]]] = {
    "max-length": (0.4, (0, 1, 3, 6, 10)),
    "max-length-bytes": (0.2, (5, 20, 40)),
    "overflow": (0.5, ("drop-head", "reject-publish", "reject-publish", "reject-publish-dlx")),
    "message-ttl": (0.2, (0, 2, 20, 60)),
    "expires": (0.1, (30, 80)),
    "dead-letter-exchange": (0.5, ("dlx",)),
    "dead-letter-routing-key": (0.2, ("dead",)),
    "dead-letter-strategy": (0.5, ("at-least-once",)),
    "delivery-limit": (0.4, (-1, 0, 1, 2, 5_000)),
    "delayed-retry-type": (0.3, ("all", "failed", "returned", "disabled")),
    "delayed-retry-min": (0.4, (0, 1, 4)),
    "delayed-retry-max": (0.2, (2, 6)),
    "max-age": (0.2, ("1s", "2s")),
}


def drawn(keys: Iterable[Key]) -> Iterator[Drawn]:
    """Yield every key of policies that decides something: those chosen first, as seeds depend on the order."""
    deciding = {key.name: key for key in keys if key.merge and key.decides and key.name not in NOT_DRAWN}
    for name in (*CHOSEN, *(name for name in deciding if name not in CHOSEN)):
        chance, values = CHOSEN.get(name) or (0.1, _of_kind(deciding[name].values))
        yield name.removeprefix("x-").replace("-", "_"), chance, values


def _of_kind(values: Values) -> tuple[object, ...]:
    if isinstance(values, Number):
        return tuple((values.least or 0) + more for more in (0, 2, 20))
    if isinstance(values, Choice):
        return values.values
    if isinstance(values, Flag):
        return (False, True)
    return ("1s", "2s") if isinstance(values, Age) else ("some",)


DRAWN = tuple(drawn(KEYS))
