"""Declares an operation of the HTTP API beside its handler: its parameters, its body and its answers.

    @operation("Sets a mark", folds=Folds.NONE, who=POLICYMAKER, body=MarkWish, answers={201: None, 204: None})
    async def put(call: Call) -> Response: ...

The declaration is about what only the handler knows. document.py adds what follows from the route (path, method, names
in the path) and from the kind of request (an unknown login, a body that is too large). Types are Python's: a View or
a TypedDict (engine/http/shapes/) becomes a JSON schema.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from rewindmq.engine.config import Act

ADMINISTRATOR, MONITORING, POLICYMAKER, ANYBODY = "administrator", "monitoring", "policymaker", ""
DECLARED = "operation"  # the attribute of a handler that has its declaration
H = TypeVar("H", bound=Callable[..., object])


class Folds(Enum):
    """The partitions that a node with paused ones (cluster/partition_pausing.py) folds for a request.

    They are no more than the answer needs.

    An answer about the past needs none: it is read from the log. A user without the tag administrator may see the past
    of a queue that exists now. So the handler folds the partition of that queue, which is NAMED."""

    NONE = "none: no queue decides the answer"
    COUNTERS = "those whose counters no owner publishes"
    CONSUMERS = "those whose consumers the counters do not name all"
    QUEUE = "that of the queue in the path, and those of others that the body names, which the handler folds"
    DESTINATION = "that of the queue that is the destination in the path"
    NAMED = "those that the query or the body names, and those of queues that it names. The handler folds them"
    # A queue that is concerned may be in any partition, and another node may have declared it a moment ago.
    IF_CHANGED = "all, if it changes something that may concern any queue. The handler folds them"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of the query string. `kind`: its type."""

    name: str
    kind: object
    text: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """An answer that is not JSON, by its media type."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A declaration.

    `folds`: the partitions that a node folds for it. `who`: the tag that the user needs; ANYBODY: any user, who may
    need permissions. `login`: whether a login is needed. `body`: the type of the JSON body; None: there is none.
    `answers`: by status, the type of the JSON, a Media, or None for no content. `listing`: the type of an entry of a
    listing, which is answered as a whole or in pages. `columns`: whether `columns` cuts the answer. `errors`: statuses
    besides those that every such request may have. `act`: what it does, for --require-reason."""

    summary: str
    folds: Folds
    who: str = ANYBODY
    login: bool = True
    query: tuple[Query, ...] = ()
    headers: tuple[Query, ...] = ()
    body: object = None
    answers: Mapping[int, object] = field(default_factory=dict)
    listing: object = None
    columns: bool = False
    errors: tuple[int, ...] = ()
    act: Act | None = None


def operation(
    summary: str,
    *,
    folds: Folds,
    who: str = ANYBODY,
    login: bool = True,
    query: tuple[Query, ...] = (),
    headers: tuple[Query, ...] = (),
    body: object = None,
    answer: object = None,
    answers: Mapping[int, object] | None = None,
    listing: object = None,
    columns: bool = False,
    errors: tuple[int, ...] = (),
    act: Act | None = None,
) -> Callable[[H], H]:
    """Declare a handler's operation (see Operation). `answer`: the type of the only answer, with status 200."""
    found = Operation(
        summary=summary,
        folds=folds,
        who=who,
        login=login,
        query=query,
        headers=headers,
        body=body,
        answers={200: answer} if answers is None else answers,
        listing=listing,
        columns=columns,
        errors=errors,
        act=act,
    )

    def declare(handler: H) -> H:
        vars(handler)[DECLARED] = found
        return handler

    return declare


def operation_of(handler: Callable[..., object]) -> Operation | None:
    """Return the declaration of a handler; None: it has none."""
    found = vars(handler).get(DECLARED)
    return found if isinstance(found, Operation) else None


def streamed(handler: Callable[..., object], stream: H) -> H:
    """`stream`, declared as the stream of the answers of `handler`."""
    of = operation_of(handler)
    if of is not None:
        text = "Server-sent events: `figures`, with the answer as JSON; `problem`; `end`"
        events = {200: Media("text/event-stream", text)}
        summary = f"The same as a stream of live figures: {of.summary}"
        vars(stream)[DECLARED] = replace(of, summary=summary, answers=events, errors=(*of.errors, 429))
    return stream
