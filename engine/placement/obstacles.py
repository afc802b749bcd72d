"""Obstacles to a repartition: what this broker's log is bound to that knows one number of partitions only."""

from rewindmq.engine.config import Config
from rewindmq.engine.log.embedded.roles import noted_followers


def why_not_repartition(config: Config) -> str:
    """Why the log of this broker can't get more partitions, in one line that says what to do; "" if it can.

    Raises LogError where a note in the data directory cannot be read."""
    if config.follow is not None:
        return f"this node copies the log of {config.follow}: repartition that one"
    if config.read_only:
        return "this broker serves its history only, and writes nothing"
    followers = noted_followers(config.data)
    if followers:
        names = ", ".join(sorted(followers))
        return (
            f"followers copy this log ({names}), and a copy keeps its number of partitions: forget them with"
            " `rewindmq forget_follower NAME`, and let them begin anew in empty directories afterwards"
        )
    return ""
