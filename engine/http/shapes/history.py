"""Types of the answers about the history."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, Self, TypedDict

from rewindmq.engine.http.properties import properties_of
from rewindmq.engine.http.shapes.basics import (
    Encoding,
    LeavingView,
    MessageId,
    MomentView,
    Properties,
    Time,
    leaving,
    shown,
    time_or_none,
)
from rewindmq.engine.http.shapes.topology import BindingView, LostBindingView
from rewindmq.engine.rewind.outcomes import change_of
from rewindmq.projections.rewind import format_time
from rewindmq.projections.what_if.alternative import LIMITS
from rewindmq.schemas.views import LEFT_OUT, From, View

if TYPE_CHECKING:
    from rewindmq.engine.http.call import Call
    from rewindmq.engine.keeping.seals.sealer import Harm
    from rewindmq.engine.rewind.bindings_at import LostBinding
    from rewindmq.engine.rewind.depth import Depth, DepthTick, Point
    from rewindmq.engine.rewind.outcomes import Changes
    from rewindmq.engine.rewind.restore_plan import Plan
    from rewindmq.engine.rewind.seals import SealedPartition
    from rewindmq.engine.rewind.search import FoundMessage
    from rewindmq.engine.rewind.what_if import WhatIf, World
    from rewindmq.projections.history.outcome_rows import OutcomeRow
    from rewindmq.projections.topology.about_history import Floor
    from rewindmq.projections.what_if.later_outcomes import FateDifference
    from rewindmq.schemas.metadata_events import Bound, MarkSet

MOST_HARMS = 100  # in an answer about seals
of_found: "From[[FoundMessage, str | None]]" = From()  # the only queue that the user may know of; None: all are shown
of_changes: "From[Changes]" = From()
of_point: "From[Point]" = From()
of_tick: "From[DepthTick]" = From()
of_depth: "From[Depth]" = From()
of_difference: "From[FateDifference]" = From()
of_what_if: "From[WhatIf]" = From()
of_plan: "From[Plan]" = From()
of_mark: "From[[MarkSet, Call]]" = From()
of_sealed: "From[SealedPartition]" = From()
of_floor: "From[Floor]" = From()
of_world: "From[World]" = From()
of_harm: "From[Harm]" = From()


class OriginView(View):
    """The message that a dead letter comes from."""

    vhost: str
    queue: str
    queue_id: int
    message_id: MessageId
    reason: str


class OutcomeView(View):
    """A row of the history: an outcome of an event. The columns are those of Spark's table HISTORY."""

    timestamp: Time | None
    partition: str
    offset: Annotated[int, "Of the event that caused it"]
    ordinal: int
    event: str | None
    user: str | None
    session: int | None
    why: Annotated[str | None, "The reason that the user gave"]
    vhost: str | None
    queue: str | None
    queue_id: int | None
    outcome: str
    final: Annotated[bool | None, "By it the message left its queue"]
    consumer: int | None
    delivery_count: int | None
    redelivered: bool | None
    reason: str | None
    rule: str | None
    policy: str | None
    policy_version: int | None
    exchange: str | None
    routing_key: str | None
    origin: OriginView | None
    message_id: MessageId | None
    size: int | None

    @classmethod
    def of_row(cls, row: "OutcomeRow", **more: Any) -> Self:
        """Return the view of a row, with the fields that only a kind of row has."""
        return cls(**more, timestamp=time_or_none(row.time_ms), **row.fields())


class TraceView(View):
    """The trace of a message, and the span that published it (W3C Trace Context)."""

    trace_id: str
    parent_id: str
    flags: int
    state: str
    message_id: str | None
    correlation_id: str | None


class TracedOutcomeView(OutcomeView):
    """A row of the history. A publish that belongs to a trace has it."""

    trace: TraceView = LEFT_OUT


class UnroutedView(View):
    """The broker's answer to a message that no queue took."""

    alternate: Annotated[bool, "An alternate exchange was asked, and had no queue for it either"]
    returned: Annotated[bool, "It was mandatory, and was returned to its publisher"]


class FoundMessageView(View):
    """A message of the history."""

    message: Annotated[str, "partition:message id"] = of_found(lambda found, _: f"{found.partition}:{found.offset}")
    partition: str
    message_id: MessageId = of_found(lambda found, _: found.offset)
    published: Time = of_found(lambda found, _: format_time(found.time_ms))
    user: str = of_found(lambda found, _: found.actor.user)
    why: Annotated[str | None, "The reason that the user gave"] = of_found(lambda found, _: found.actor.reason or None)
    vhost: str = of_found(lambda found, _: found.published.route.vhost)
    queues: list[str] = of_found(lambda found, only: list(found.published.route.queues) if only is None else [only])
    exchange: str = of_found(lambda found, _: found.published.route.exchange)
    routing_key: str = of_found(lambda found, _: found.published.route.routing_key)
    unrouted: Annotated[UnroutedView, "If no queue took it"] = of_found.maybe(
        lambda found, _: UnroutedView.of(route.unrouted) if (route := found.published.route).unrouted else LEFT_OUT
    )
    origin: OriginView | None = of_found(
        lambda found, only: OriginView.of(found.published.origin) if found.published.origin and only is None else None
    )
    payload_bytes: int = of_found(lambda found, _: found.published.body_size)
    properties: Properties = of_found(lambda found, _: properties_of(found.published.properties))
    payload: str
    payload_encoding: Encoding

    @classmethod
    def cut(cls, found: "FoundMessage", truncate: int, only: str | None, **more: Any) -> Self:
        """Return the view of a message, with at most this number of bytes of its body."""
        payload, encoding = shown(found.published.body, "auto", truncate)
        return cls.of(found, only, payload=payload, payload_encoding=encoding, **more)


class FoundMessagesView(View):
    """A portion of a search. `next` null: the search is at its end."""

    messages: list[FoundMessageView]
    searched: Annotated[int, "Records that were searched"]
    read: Annotated[int, "... and read: an index of ids spares the others"]
    left: Annotated[int, "Records that are still to be searched"]
    next: str | None


class BiographyMessageView(FoundMessageView):
    """The message of a biography."""

    truncated: bool
    body_gone: Annotated[str | None, "Why its body is gone"]


class BiographyView(View):
    """The life of a message."""

    message: BiographyMessageView
    rows: list[OutcomeView]
    complete: bool


class LastOutcomesView(View):
    """The last outcomes in a queue."""

    partition: str
    rows: list[OutcomeView]
    complete: bool


class ChangeSumView(View):
    """The number of messages that came or left, by outcome, rule and user."""

    outcome: str
    rule: str | None
    user: str | None
    change: int


class ChangeView(OutcomeView):
    """A row by which a message came (1) or left (-1)."""

    change: Literal[1, -1]


class ChangesView(View):
    partition: str
    from_: int = of_changes(lambda found: found.start, name="from")
    to: int = of_changes(lambda found: found.end)
    summary: list[ChangeSumView] = of_changes(
        lambda found: [
            ChangeSumView(outcome=outcome, rule=rule, user=user, change=change)
            for (outcome, rule, user), change in found.sums.items()
        ]
    )
    rows: list[ChangeView] = of_changes(
        lambda found: [ChangeView.of_row(row, change=change_of(row)) for row in found.rows]
    )
    more: Annotated[int, "Rows that are not shown"]
    complete: bool


class PointView(View):
    """The length of a queue at a moment, and what happened since the point before."""

    time: Time = of_point(lambda point: format_time(point.time_ms))
    offset: int
    ready: Annotated[int | None, "null: the queue did not exist"]
    unacked: int | None
    published: int = of_point(lambda point: point.outcomes.get("published", 0))
    outcomes: dict[str, int] = of_point(
        lambda point: {name: count for name, count in point.outcomes.items() if name != "published"}
    )


COUNTED = ("purged", "removed", "moved", "restored")  # the ticks that tell how many messages they concerned


class TickView(View):
    """A person's act: a purge, a policy, a mark ..."""

    time: Time = of_tick(lambda tick: format_time(tick.time_ms))
    offset: int
    kind: str
    text: str
    user: str
    why: Annotated[str | None, "The reason that the user gave"] = of_tick(lambda tick: tick.why or None)
    messages: int = of_tick.maybe(lambda tick: tick.count if tick.kind in COUNTED else LEFT_OUT)


class DepthOverTimeView(View):
    partition: str
    from_: MomentView = of_depth(lambda found: MomentView.of(found.points[0]), name="from")
    to: MomentView = of_depth(lambda found: MomentView.of(found.points[-1]))
    floor: Annotated[int | None, "Where the history begins, if it was trimmed"]
    points: list[PointView] = of_depth(lambda found: [PointView.of(each) for each in found.points])
    ticks: list[TickView] = of_depth(lambda found: [TickView.of(each) for each in found.ticks])
    more_ticks: int | bool
    complete: bool


class WorldView(View):
    """A queue in one of the two folds."""

    outcomes: list[LeavingView] = of_world(lambda world: leaving(world.outcomes))
    greatest_depth: int
    depth: int


class ExchangedView(View):
    """The number of messages that end by `after` instead of `before`."""

    before: str
    before_rule: str | None
    after: str
    after_rule: str | None
    messages: int


class DifferenceView(View):
    """A message that would have ended differently."""

    message_id: MessageId
    before: str = of_difference(lambda found: found.before[0])
    before_at: Time = of_difference(lambda found: format_time(found.before[1]))
    before_rule: str | None = of_difference(lambda found: found.before[2] or None)
    after: str = of_difference(lambda found: found.after[0])
    after_at: Time = of_difference(lambda found: format_time(found.after[1]))
    after_rule: str | None = of_difference(lambda found: found.after[2] or None)


class WhatIfView(View):
    partition: str
    from_: int = of_what_if(lambda found: found.start, name="from")
    to: int = of_what_if(lambda found: found.reached)
    left: Annotated[int, "Records that were not folded"] = of_what_if(lambda found: found.end - found.reached)
    stopped: Annotated[str | None, "Why the end was not reached"]
    before: WorldView = of_what_if(lambda found: WorldView.of(found.before))
    after: WorldView = of_what_if(lambda found: WorldView.of(found.after))
    summary: list[ExchangedView] = of_what_if(
        lambda found: [
            ExchangedView(
                before=before, before_rule=rule or None, after=after, after_rule=other or None, messages=messages
            )
            for (before, rule, after, other), messages in found.changed.items()
        ]
    )
    rows: list[DifferenceView] = of_what_if(lambda found: [DifferenceView.of(each) for each in found.first])
    more: int = of_what_if(lambda found: found.changed.total() - len(found.first))
    assumptions: dict[str, int] = of_what_if(lambda found: found.assumed)
    limits: Annotated[list[str], "What such an answer cannot know"] = of_what_if(lambda _: list(LIMITS))
    complete: bool = of_what_if(lambda found: found.stopped is None)


class TracedOutcomesView(View):
    """A portion of rows. `next` null: it was the last one."""

    rows: list[TracedOutcomeView]
    left: int
    next: str | None


class RestoreWish(TypedDict, total=False):
    """The messages to restore: chosen by one of `time`, `offset` and `undo`, or by `messages`."""

    time: Annotated[str, "A time, or mark:NAME"]
    offset: int
    partition: Annotated[str, "The one that offset or messages are of"]
    undo: Literal["purge", "delete", "remove"]
    only: Annotated[str | list[str], "Fates since then, or all"]
    messages: list[int]
    records: Annotated[dict[str, str], "With messages, by id: the SHA-256 of records in the history that they are of"]
    to: Annotated[str, "Another queue of the virtual host"]
    name: Annotated[str, "Each message comes back once under a name"]
    rate: Annotated[int | str, "Messages a second"]
    dry_run: bool | str
    incarnation: Annotated[int | str, "A queue id"]


class RestoreMomentView(View):
    """The moment of a restoration."""

    partition: str
    offset: int
    time: Time = of_plan(lambda plan: format_time(plan.time_ms))


class RestoredView(View):
    """The messages that came back, or would come back."""

    name: str
    vhost: str
    queue: str
    to: str
    at: RestoreMomentView = of_plan(RestoreMomentView.of)
    messages: int = of_plan(lambda plan: len(plan.messages))
    message_bytes: int = of_plan(lambda plan: sum(each.size for each in plan.messages))
    fates: dict[str, int]
    dry_run: bool
    restored: int = LEFT_OUT
    duplicates: int = LEFT_OUT
    refused: int = LEFT_OUT
    declared: bool = LEFT_OUT
    cancelled: bool = LEFT_OUT
    bindings: list[BindingView]
    bindings_lost: list[LostBindingView]

    @classmethod
    def planned(
        cls, plan: "Plan", target: str, name: str, bound: "list[Bound]", lost: "list[LostBinding]", **done: Any
    ) -> Self:
        """Return the view of a plan, with the bindings that come back and those that are lost, and `done`."""
        bindings = [BindingView.of(each) for each in bound]
        bindings_lost = [LostBindingView.of(each.bound, reason=each.reason) for each in lost]
        return cls.of(plan, name=name, to=target, bindings=bindings, bindings_lost=bindings_lost, **done)


class UnroutedWish(TypedDict, total=False):
    """The unrouted messages to route again: those published to an exchange since a time."""

    exchange: Required[str]
    since: Required[Annotated[str, "A time"]]
    until: Annotated[str, "A time"]
    routing_key: Annotated[str, "Only messages with this key"]
    dry_run: bool | str


class RouteNowView(View):
    """Where messages with a routing key go now. `queues` empty: nowhere."""

    routing_key: str
    queues: list[str]
    messages: int


class ReroutedView(View):
    """The unrouted messages that came back, or would come back. `nowhere`: no queue takes them now either."""

    exchange: str
    messages: int
    routes: Annotated[list[RouteNowView], "At most 1,000, those of most messages first"]
    dry_run: bool
    restored: int = LEFT_OUT
    duplicates: int = LEFT_OUT
    refused: int = LEFT_OUT
    nowhere: int


class CancelledRestorationView(View):
    """A restoration that was cancelled. `back`: the messages that are back."""

    name: str
    to: str
    messages: int
    back: int


class CancelledView(View):
    """The restorations that were cancelled."""

    cancelled: list[CancelledRestorationView]


class MarkView(View):
    """A moment with a name. Note and user are empty for users who may not see them."""

    name: str
    note: str = of_mark(lambda mark, call: mark.note if sees_all(mark, call) else "")
    user: str = of_mark(lambda mark, call: call.broker.topology.marked[mark.name][1] if sees_all(mark, call) else "")
    time: Time = of_mark(lambda mark, call: format_time(call.broker.topology.marked[mark.name][0]))
    positions: dict[str, int] = of_mark(lambda mark, _: dict(mark.positions))


def sees_all(mark: "MarkSet", call: "Call") -> bool:
    """Return True if the user may see note and user of a mark."""
    return call.broker.topology.marked[mark.name][1] == call.user or call.monitors or "policymaker" in call.tags


class MarkWish(TypedDict, total=False):
    """A mark that is to be set."""

    note: str


class QuarantinedRecordView(View):
    """A record that made no sense and was skipped."""

    partition: str
    topic: str | None
    offset: int
    event: str | None
    reason: str


class SealedView(View):
    """The sealed part of a partition."""

    partition: str
    seals: int
    sealed_to: int
    next_offset: int = of_sealed(lambda found: found.end)
    not_sealed: int = of_sealed(lambda found: max(0, found.end - found.sealed_to))
    sealed: Time | None = of_sealed(lambda found: time_or_none(found.time_ms))
    key: str | None
    keys: Annotated[int | list[str], "The keys that sealed it"]
    damaged: list[str] = of_sealed(lambda found: found.harms[:MOST_HARMS])


class SealedPartitionsView(View):
    """All partitions, in the shape of a page."""

    total_count: int
    item_count: int
    filtered_count: int
    page: int
    page_size: int
    page_count: int
    items: list[SealedView]


class HarmView(View):
    """A problem that a check of the seals found."""

    offset: int | None
    what: str = of_harm(lambda harm: str(harm))


class SealCheckView(View):
    """A portion of a check of the seals. `next` null: it was the last one."""

    partition: str
    stretches: int
    checked: int
    next: int | None
    sealed_to: int
    signatures: Annotated[bool, "Whether signatures were checked"]
    harms: list[HarmView]
    more: int
    notes: list[str]


class TrimAuditView(View):
    """The audit of what was trimmed last from a partition."""

    partition: str = of_floor(lambda floor: floor.event.partition)
    audited_to: int = of_floor(lambda floor: floor.event.offset)
    time: Time = of_floor(lambda floor: format_time(floor.time_ms))
    user: str
    until: Time = of_floor(lambda floor: format_time(floor.event.until_ms))
    reason: str = of_floor(lambda floor: floor.event.reason)
    findings: list[str] = of_floor(lambda floor: list(floor.event.findings))
    chain: str = of_floor(lambda floor: floor.event.chain.hex())
    digest: str = of_floor(lambda floor: floor.event.digest)
