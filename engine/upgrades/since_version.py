"""Refuses what needs a later machine version than the history follows."""

from typing import Final

from rewindmq.engine.errors import PreconditionFailed

# Features that need a later machine version than the first, by the name that users know: an argument of queues
# (`x-...`), or the words of a refusal.
SINCE_VERSION: Final[dict[str, int]] = {}


def require(what: str, version: int) -> None:
    """Raise PreconditionFailed if `what` needs a later machine version than `version`, which the history follows."""
    needed = SINCE_VERSION.get(what, 1)
    if version < needed:
        raise PreconditionFailed(
            f"{what} needs machine version {needed}, and the history follows {version}: it can be used after"
            " `rewindmq finalize_upgrade`"
        )
