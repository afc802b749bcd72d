"""Types of users, permissions and limits."""

from typing import TYPE_CHECKING, Annotated, TypedDict

from rewindmq.projections.rewind import format_time
from rewindmq.schemas.views import LEFT_OUT, From, View

if TYPE_CHECKING:
    from rewindmq.engine.erasure.day_expiry import HeldBack
    from rewindmq.projections.topology.about_history import Erasure

of_erasure: "From[Erasure]" = From()
of_held: "From[HeldBack]" = From()


class RightsWish(TypedDict, total=False):
    """Patterns of names; empty: none."""

    configure: str
    write: str
    read: str


class AccountWish(TypedDict, total=False):
    """A user to make or to change. Without a password the user can no longer log in."""

    password: str
    password_hash: str
    hashing_algorithm: str
    keep_password: Annotated[bool, "The user keeps the password that it has"]
    tags: Annotated[str | list[str], "Names, or one text with commas between them"]
    permissions: Annotated[dict[str, RightsWish] | None, "By virtual host, for a new user only"]
    limits: Annotated[dict[str, int] | None, "They are added to those that are set"]


class UsersWish(TypedDict):
    """Names of users."""

    users: list[str]


class PasswordHashView(View):
    """A hash as RabbitMQ's."""

    ok: str


class PermissionsWish(TypedDict):
    """Permissions that are to be set."""

    configure: str
    write: str
    read: str


class TopicPermissionsWish(TypedDict):
    """Permissions for routing keys that are to be set."""

    exchange: str
    write: str
    read: str


class VhostLimitsView(View):
    """The limits of a virtual host."""

    vhost: str
    value: dict[str, int]


class UserLimitsView(View):
    """The limits of a user."""

    user: str
    value: dict[str, int]


class LimitWish(TypedDict):
    """A limit that is to be set; -1: none."""

    value: int


class ErasureView(View):
    """The erasure of a subject. `offset`: of the metadata log."""

    subject: str
    key_ids: list[str | int]
    time: str = of_erasure(lambda each: format_time(each.time_ms))
    user: str
    reason: str
    offset: int


class HeldByView(View):
    """A queue that has messages of a day."""

    vhost: str = of_held(lambda each: each.name[0])
    queue: str = of_held(lambda each: each.name[1])
    messages: int


class ExpiredDayView(View):
    """A day of bodies. `state`: kept, due, held (by `queues`) or expired."""

    day: str
    state: str
    keys: int
    time: str | None
    offset: int | None
    queues: list[HeldByView] = LEFT_OUT
