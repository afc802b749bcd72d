"""Types of users, permissions and limits."""

from typing import Annotated, NotRequired, TypedDict


class Account(TypedDict):
    """A user."""

    name: str
    password_hash: str
    hashing_algorithm: str
    tags: list[str]
    limits: dict[str, int]


class Rights(TypedDict, total=False):
    """Patterns of names; empty: none."""

    configure: str
    write: str
    read: str


class AccountWish(TypedDict, total=False):
    """A user that is to be made, or changed. Without a password the user cannot log in any more."""

    password: str
    password_hash: str
    hashing_algorithm: str
    keep_password: Annotated[bool, "The user keeps the password that it has"]
    tags: Annotated[str | list[str], "Names, or one text with commas between them"]
    permissions: Annotated[dict[str, Rights] | None, "By virtual host, for a new user only"]
    limits: Annotated[dict[str, int] | None, "They are added to those that are set"]


class Users(TypedDict):
    """Names of users."""

    users: list[str]


class PasswordHash(TypedDict):
    """A hash as RabbitMQ's."""

    ok: str


class Permissions(TypedDict):
    """The permissions of a user in a virtual host."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class PermissionsWish(TypedDict):
    """Permissions that are to be set."""

    configure: str
    write: str
    read: str


class TopicPermissions(TypedDict):
    """The permissions of a user for routing keys of an exchange."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class TopicPermissionsWish(TypedDict):
    """Permissions for routing keys that are to be set."""

    exchange: str
    write: str
    read: str


class VhostLimits(TypedDict):
    """The limits of a virtual host."""

    vhost: str
    value: dict[str, int]


class UserLimits(TypedDict):
    """The limits of a user."""

    user: str
    value: dict[str, int]


class LimitWish(TypedDict):
    """A limit that is to be set; -1: none."""

    value: int


class Erasure(TypedDict):
    """The erasure of a subject. `offset`: of the metadata log."""

    subject: str
    key_ids: list[str | int]
    time: str
    user: str
    reason: str
    offset: int


class HeldBy(TypedDict):
    """A queue that has messages of a day."""

    vhost: str
    queue: str
    messages: int


class ExpiredDay(TypedDict):
    """A day of bodies. `state`: kept, due, held (by `queues`) or expired."""

    day: str
    state: str
    keys: int
    time: str | None
    offset: int | None
    queues: NotRequired[list[HeldBy]]
