"""Refuses what needs a later machine version than the history follows."""

from typing import Final

from rewindmq.engine.errors import PreconditionFailed

# The machine version from which on something can be used, where that is not the first one. By what a user calls it:
# an argument of queues (`x-...`), or the words of a refusal.
SINCE_VERSION: Final[dict[str, int]] = {}


def require(what: str, version: int) -> None:
    """Check that a history which follows this machine version has `what` is asked for. PreconditionFailed."""
    needed = SINCE_VERSION.get(what, 1)
    if version < needed:
        raise PreconditionFailed(
            f"{what} needs machine version {needed}, and the history follows {version}: it can be used after"
            " `rewindmq finalize_upgrade`"
        )
