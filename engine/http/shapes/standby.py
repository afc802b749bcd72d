"""Types of the answers about followers, and of what a follower asks its leader."""

from typing import Annotated, TypedDict


class Position(TypedDict):
    """A place in a partition of the log."""

    offset: int
    chain: Annotated[str, "The hash chain up to there, in hexadecimal digits"]


class BranchedHistory(TypedDict):
    """A fork: from here on a history of its own."""

    identity: str
    positions: Annotated[dict[str, Position], "By partition; one that cannot be proven any more is left out"]


class Leader(TypedDict):
    """The log of a broker, for one that follows it."""

    node: str
    root: Annotated[str, "The identity with which the history begins"]
    queue_partitions: int
    starts: Annotated[dict[str, int], "The offset at which each partition begins here"]
    branches: list[BranchedHistory]
    seals: Annotated[dict[str, list[int]], "By partition, the offsets of its seals"]


class FollowerWish(TypedDict):
    """A follower's account of its copy."""

    instance: Annotated[str, "Which copy this is"]
    root: str | None
    lineage: list[str]
    ends: dict[str, Position]
    newer: list[BranchedHistory]


class FollowerToken(TypedDict):
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


class KeysOfBodies(TypedDict):
    """Keys of bodies."""

    keys: Annotated[dict[str, str], "By id, in base64; one that was destroyed or is not here is left out"]


class Follows(TypedDict):
    """The leader that this node follows."""

    leader: Annotated[str, "The URL that was given"]
    connected: bool
    problem: Annotated[str, "Why it is not connected, or empty"]
    lag_records: Annotated[int, "Records of the leader that are not here, as far as is known"]
    lag_seconds: float
    unfolded_records: Annotated[int, "Records that are here and do not show in listings yet"]


class FollowerItem(TypedDict):
    """A follower, as its leader knows it."""

    name: str
    connected: bool
    address: str
    lag_records: Annotated[
        int | None, "Synced here and not acknowledged; null: it acknowledged nothing since the start"
    ]
    lag_seconds: float | None
    confirms: Annotated[bool, "Confirms wait for it"]
    acknowledged: Annotated[dict[str, int], "By partition: it has all records below"]


class Standby(TypedDict):
    """The machines that follow this broker, and the one that it follows."""

    confirm_after: Annotated[str, "sync or follower"]
    unacknowledged_records: Annotated[int, "Synced records whose confirms wait for followers"]
    waiting_seconds: Annotated[float, "For how long confirms have waited, and no acknowledgement let one go"]
    followers: list[FollowerItem]
    follows: Follows | None
