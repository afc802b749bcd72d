"""Types that many answers share."""

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NotRequired, Protocol, TypedDict, TypeVar

from rewindmq.engine.http.statistics import CHURN, DELIVERIES, DEPTH, OVERVIEW
from rewindmq.projections.rewind import format_time
from rewindmq.schemas.views import LEFT_OUT, From, View

V = TypeVar("V", bound=View)
Names = dict[str, str]
Table = dict[str, Any]
Time = Annotated[str, "ISO 8601 in UTC, with milliseconds"]
MessageId = Annotated[int, "The offset of the message's publish in its partition"]
Encoding = Literal["string", "base64"]
of_moment: "From[Moment]" = From()


def time_or_none(time_ms: int | None) -> str | None:
    """Return a time that may be unknown."""
    return None if time_ms is None else format_time(time_ms)


def shown(body: bytes, encoding: str, truncate: int | None) -> tuple[str, Encoding]:
    """Return a body for JSON, and its encoding. `encoding` auto: a string if the shown part is UTF-8."""
    cut = body if truncate is None else body[:truncate]
    if encoding == "auto":
        try:
            return cut.decode(), "string"
        except UnicodeDecodeError:
            return base64.b64encode(cut).decode(), "base64"
    return base64.b64encode(cut).decode(), "base64"


class ErrorView(View):
    """Why a request was refused."""

    error: Annotated[str, "A short word, as RabbitMQ has it"]
    reason: Annotated[object, "A sentence for people; a list where an action of a queue is not known"]


class RateView(View):
    """The growth of a count per second."""

    rate: float


def counted(*names: str, optional: bool = False) -> Callable[[type[V]], type[V]]:
    """Add counts to the fields of a class, each with its rate in `..._details`."""

    def add(kind: type[V]) -> type[V]:
        for name in names:
            kind.__annotations__ |= {name: int, f"{name}_details": RateView}
            if optional:
                setattr(kind, name, LEFT_OUT)
                setattr(kind, f"{name}_details", LEFT_OUT)
        return kind

    return add


@counted(*DEPTH)
class DepthView(View):
    """Numbers of messages, each with its rate."""


@counted(*DELIVERIES)
class DeliveriesView(View):
    """Counts since the node's start, each with its rate."""


@counted(*DELIVERIES, "publish")
class QueueStatsView(View):
    """Counts of a queue since the node's start, each with its rate."""


@counted(*OVERVIEW)
class MessageStatsView(View):
    """Counts of a node or of a channel, each with its rate."""


@counted(*CHURN)
class ChurnView(View):
    """The numbers of things that came and went since the node's start, each with its rate."""


class Properties(TypedDict):
    """The properties of a message that were given, without BCC."""

    content_type: NotRequired[str]
    content_encoding: NotRequired[str]
    headers: NotRequired[Table]
    delivery_mode: NotRequired[int]
    priority: NotRequired[int]
    correlation_id: NotRequired[str]
    reply_to: NotRequired[str]
    expiration: NotRequired[str]
    message_id: NotRequired[str]
    timestamp: NotRequired[int]
    type: NotRequired[str]
    user_id: NotRequired[str]
    app_id: NotRequired[str]
    cluster_id: NotRequired[str]
    undecodable: NotRequired[Annotated[str, "Base64 of bytes in the history that are not properties"]]


class LeavingView(View):
    """Messages that would leave, by outcome and by the rule that decides."""

    outcome: str
    rule: str | None
    messages: int


def leaving(counts: Mapping[tuple[str, str], int]) -> list[LeavingView]:
    """Return messages by outcome and rule."""
    return [
        LeavingView(outcome=outcome, rule=rule or None, messages=messages)
        for (outcome, rule), messages in sorted(counts.items())
    ]


class Moment(Protocol):
    offset: int
    time_ms: int


class MomentView(View):
    """An offset of a partition, and its time."""

    offset: int
    time: Time = of_moment(lambda moment: format_time(moment.time_ms))


class ReasonWish(TypedDict):
    """The reason of a change, which the history keeps."""

    reason: NotRequired[str]
