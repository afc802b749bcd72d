"""Facts that tools ask for before they use a feature, and POST /api/upgrade/finalize (docs/operators/upgrades.md).

Feature flags and deprecated features have RabbitMQ 3.13's names.
"""

from collections.abc import Awaitable, Callable
from dataclasses import fields

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, bad_request, not_found, reply
from rewindmq.engine.http.listing import listed_queues
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Media, operation
from rewindmq.engine.http.resources.overview import node_views
from rewindmq.engine.http.shapes.node import Authentication, DeprecatedFeature, FeatureFlag, FinalizedUpgrade
from rewindmq.engine.upgrades.finalize import OlderNodes, finalize

# The flags of 3.13 whose features exist here, all enabled.
FEATURE_FLAGS = {
    "classic_queue_type_delivery_support": "Bug fix for classic queue deliveries using mixed versions",
    "detailed_queues_endpoint": "Add a detailed queues HTTP API endpoint. Reduce number of metrics in the default "
    "endpoint.",
    "drop_unroutable_metric": "Count unroutable publishes to be dropped in stats",
    "empty_basic_get_metric": "Count AMQP `basic.get` on empty queues in stats",
    "implicit_default_bindings": "Default bindings are now implicit, instead of being stored in the database",
    "message_containers_deaths_v2": "Bug fix for dead letter cycle detection",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_queue": "Support queues of type `stream`",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}
FLAG = {"doc_url": "", "state": "enabled", "stability": "required", "provided_by": "rabbit"}
ANNOUNCEMENT = "https://blog.rabbitmq.com/posts/2021/08/4.0-deprecation-announcements/#removal-of-"
DEPRECATED = [
    {
        "name": name,
        "desc": description,
        "deprecation_phase": "permitted_by_default",
        "doc_url": ANNOUNCEMENT + anchor,
        "provided_by": "rabbit",
    }
    for name, description, anchor in (
        ("global_qos", "Support for channel-wide prefetch (basic.qos global)", "global-qos"),
        ("transient_nonexcl_queues", "Transient queues that are not exclusive", "transient-non-exclusive-queues"),
    )
]


def fixed(summary: str, kind: object, answer: object) -> Callable[[Call], Awaitable[Response]]:
    """Return the handler of a question of RabbitMQ's tools whose answer is always the same here."""

    @operation(summary, folds=Folds.NONE, answer=kind)
    async def same(call: Call) -> Response:
        return reply(answer)

    return same


# By path, below /api.
FIXED = {
    "/feature-flags": fixed(
        "Lists the feature flags of RabbitMQ whose features exist here",
        list[FeatureFlag],
        [{"name": name, "desc": description, **FLAG} for name, description in FEATURE_FLAGS.items()],
    ),
    "/deprecated-features": fixed(
        "Lists the features that RabbitMQ has deprecated", list[DeprecatedFeature], DEPRECATED
    ),
    "/extensions": fixed("Lists extensions of RabbitMQ's web interface: there are none", list[object], []),
    "/auth": fixed("Says how a browser may log in", Authentication, {"oauth_enabled": False}),
}


@operation("Enables a feature flag. All are enabled already", folds=Folds.NONE, who=ADMINISTRATOR, answers={204: None})
async def enable_feature_flag(call: Call) -> Response:
    """Answer PUT /api/feature-flags/{name}/enable."""
    call.require()
    if call.segment("name") not in FEATURE_FLAGS:
        raise bad_request("Feature flag is not supported")
    return Response(status_code=204)


@operation("Lists the deprecated features that are in use", folds=Folds.COUNTERS, answer=list[DeprecatedFeature])
async def list_deprecated_used(call: Call) -> Response:
    """Answer GET /api/deprecated-features/used."""
    return reply([each for each in DEPRECATED if await is_used(call, each["name"])])


async def is_used(call: Call, name: str) -> bool:
    """Return True if a deprecated feature is in use."""
    if name == "global_qos":
        sessions = call.broker.sessions.by_id.values()
        return any(channel.global_prefetch for session in sessions for channel in session.channels.values())
    async for _, queue in call.work.over(await listed_queues(call, call.broker.topology.vhosts)):
        if not queue.durable and not queue.exclusive:
            return True
    return False


@operation(
    "Shows the configuration of the node",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    answer=Media("text/plain", "A setting a line"),
)
async def configuration(call: Call) -> Response:
    """Answer with the configuration as text, a setting a line.

    Settings of Kafka's clients may be secrets: only their names are shown. A field that is one itself is left out."""
    call.require()
    config = call.broker.config
    lines = []
    for each in fields(config):
        if not each.repr:
            continue
        value = getattr(config, each.name)
        if each.name == "kafka_settings":
            value = tuple(name for name, _ in value)
        lines.append(f"{each.name} = {value}")
    return Response("\n".join(lines) + "\n", media_type="text/plain; charset=utf-8")


@operation(
    "Forgets samples of statistics. Here they expire by themselves",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    answers={204: None},
)
async def reset(call: Call) -> Response:
    """Answer DELETE /api/reset. RabbitMQ forgets the samples of its statistics; ours expire by themselves."""
    call.require()
    asked_for = call.request.path_params.get("node")
    if asked_for is not None and all(view.name != call.segment("node") for view in node_views(call.broker)):
        raise not_found()
    return Response(status_code=204)


@operation(
    "Lets the history follow the newest machine version that the nodes know",
    folds=Folds.IF_CHANGED,
    who=ADMINISTRATOR,
    answer=FinalizedUpgrade,
    errors=(409,),
)
async def finalize_upgrade(call: Call) -> Response:
    """Answer POST /api/upgrade/finalize."""
    call.require()
    try:
        before = await finalize(call.broker, call.actor())
    except OlderNodes as error:
        raise ApiError(409, "older_nodes", str(error)) from None
    await call.durable()
    return reply({"before": before, "after": call.broker.topology.machine_version})
