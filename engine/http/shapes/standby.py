"""Types of the answers about followers, and of what a follower asks its leader."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Self, TypedDict

from rewindmq.schemas.views import From, View

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.broker.followers import Branching, Follower, Followers, Following

of_follower: "From[[Follower, Followers]]" = From()
of_broker: "From[Broker]" = From()
of_branching: "From[Branching]" = From()
of_following: "From[Following]" = From()


class PositionView(View):
    """A place in a partition of the log."""

    offset: int
    chain: Annotated[str, "The hash chain up to there, in hexadecimal digits"]

    @classmethod
    def by_partition(cls, places: Mapping[str, tuple[int, bytes]]) -> dict[str, Self]:
        """Return the views of places in partitions."""
        return {name: cls(offset=offset, chain=chain.hex()) for name, (offset, chain) in places.items()}


class BranchedHistoryView(View):
    """A fork: from here on a separate history."""

    identity: str
    positions: Annotated[dict[str, PositionView], "By partition; one that can no longer be proven is left out"] = (
        of_branching(lambda branched: PositionView.by_partition(branched.positions))
    )


class LeaderView(View):
    """The log of a broker, for one that follows it."""

    node: str
    root: Annotated[str, "The identity with which the history begins"]
    queue_partitions: int
    starts: Annotated[dict[str, int], "The offset at which each partition begins here"]
    branches: list[BranchedHistoryView]
    seals: Annotated[dict[str, list[int]], "By partition, the offsets of its seals"]


class FollowerWish(TypedDict):
    """A follower's account of its copy."""

    instance: Annotated[str, "Which copy this is"]
    root: str | None
    lineage: list[str]
    ends: dict[str, PositionView]
    newer: list[BranchedHistoryView]


class FollowerTokenView(View):
    """The follower was taken in."""

    token: Annotated[str, "Each later question has it"]


class FetchWish(TypedDict):
    """The end of a follower's copy, and the most bytes that it takes at once."""

    token: str
    at: Annotated[dict[str, list[object]], "By partition: the segment, the byte, the offset, the hash chain"]
    most: int


class KeysWish(TypedDict):
    """Ids of keys."""

    ids: list[str]


class KeysOfBodiesView(View):
    """Keys of bodies."""

    keys: Annotated[dict[str, str], "By id, in base64; one that was destroyed or is not here is left out"]


class FollowsView(View):
    """The leader that this node follows."""

    leader: Annotated[str, "The URL that was given"]
    connected: bool
    problem: Annotated[str, "Why it is not connected, or empty"]
    lag_records: Annotated[int, "Records of the leader that are not here, as far as is known"]
    lag_seconds: float = of_following(lambda following: round(following.lag_seconds, 3))
    unfolded_records: Annotated[int, "Records that are here and do not show in listings yet"]


class FollowerView(View):
    """A follower, as its leader knows it."""

    name: str
    connected: bool = of_follower(lambda follower, followers: followers.is_connected(follower))
    address: str
    lag_records: Annotated[
        int | None, "Synced here and not acknowledged; null: it acknowledged nothing since the start"
    ] = of_follower(lambda follower, followers: (followers.lag_of(follower) or (None, 0.0))[0])
    lag_seconds: float | None = of_follower(
        lambda follower, followers: None if (lag := followers.lag_of(follower)) is None else round(lag[1], 3)
    )
    confirms: Annotated[bool, "Confirms wait for it"] = of_follower(lambda _, followers: followers.confirms)
    acknowledged: Annotated[dict[str, int], "By partition: it has all records below"]


def follower_views(followers: "Followers | None") -> list[FollowerView]:
    """Return the followers of a leader, by name."""
    known = [] if followers is None else sorted(followers.known.items())
    return [FollowerView.of(follower, followers, name=name) for name, follower in known]


class StandbyView(View):
    """The machines that follow this broker, and the one that it follows."""

    confirm_after: Annotated[str, "sync or follower"] = of_broker(lambda broker: broker.config.confirm_after)
    unacknowledged_records: Annotated[int, "Synced records whose confirms wait for followers"] = of_broker(
        lambda broker: 0 if broker.followers is None else broker.followers.unacknowledged()
    )
    waiting_seconds: Annotated[float, "For how long confirms have waited, and no acknowledgement let one go"] = (
        of_broker(lambda broker: 0.0 if broker.followers is None else round(broker.followers.waiting_seconds(), 3))
    )
    followers: list[FollowerView] = of_broker(lambda broker: follower_views(broker.followers))
    follows: FollowsView | None = of_broker(
        lambda broker: None if broker.following is None else FollowsView.of(broker.following)
    )
