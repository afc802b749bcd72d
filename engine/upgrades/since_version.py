"""Refuses what needs a later machine version than the history follows."""

from typing import Final

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.projections.machine.rules.policy_keys import since
from rewindmq.projections.machine.rules.versions import UNROUTED

# Features that need a later machine version than the first, by the words of a refusal. The version of an argument or a
# policy key is in the table of keys.
SINCE_VERSION: Final[dict[str, int]] = {"a reason": UNROUTED}


def require(what: str, version: int) -> None:
    """Raise PreconditionFailed if the history follows `version`, and `what` needs a later machine version.

    `what`: the name of an argument or a policy key, or the words of a feature."""
    needed = SINCE_VERSION.get(what, since(what))
    if version < needed:
        raise PreconditionFailed(
            f"{what} needs machine version {needed}, and the history follows {version}: it can be used after"
            " `rewindmq finalize_upgrade`"
        )
