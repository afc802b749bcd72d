"""Facts that tools ask for before they use a feature, and POST /api/upgrade/finalize (docs/operators/upgrades.md).

Feature flags and deprecated features have RabbitMQ 3.13's names.
"""

from dataclasses import fields

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, bad_request, not_found, reply
from rewindmq.engine.http.listing import Item, listed_queues
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Media, operation
from rewindmq.engine.http.resources.overview import node_views
from rewindmq.engine.http.shapes.node import Authentication, DeprecatedFeature, FeatureFlag, FinalizedUpgrade
from rewindmq.engine.upgrades.finalize import OlderNodes, finalize

# The flags of 3.13 whose features exist here.
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
ANNOUNCEMENT = "https://blog.rabbitmq.com/posts/2021/08/4.0-deprecation-announcements/#removal-of-"
DEPRECATED = {
    "global_qos": ("Support for channel-wide prefetch (basic.qos global)", "global-qos"),
    "transient_nonexcl_queues": (
        "Transient queues that are not exclusive",
        "transient-non-exclusive-queues",
    ),
}


def feature_flags() -> list[Item]:
    """RabbitMQ's feature flags, all enabled."""
    return [
        {
            "name": name,
            "desc": description,
            "doc_url": "",
            "state": "enabled",
            "stability": "required",
            "provided_by": "rabbit",
        }
        for name, description in FEATURE_FLAGS.items()
    ]


@operation("Lists the feature flags of RabbitMQ whose features exist here", folds=Folds.NONE, answer=list[FeatureFlag])
async def list_feature_flags(call: Call) -> Response:
    """Answers GET /api/feature-flags."""
    return reply(feature_flags())


@operation("Enables a feature flag. All are enabled already", folds=Folds.NONE, who=ADMINISTRATOR, answers={204: None})
async def enable_feature_flag(call: Call) -> Response:
    """Answers PUT /api/feature-flags/{name}/enable. All feature flags are enabled already."""
    call.require()
    if call.segment("name") not in FEATURE_FLAGS:
        raise bad_request("Feature flag is not supported")
    return Response(status_code=204)


@operation("Lists the features that RabbitMQ has deprecated", folds=Folds.NONE, answer=list[DeprecatedFeature])
async def list_deprecated(call: Call) -> Response:
    """Answers GET /api/deprecated-features."""
    return reply([deprecated(name) for name in DEPRECATED])


@operation("Lists the deprecated features that are in use", folds=Folds.COUNTERS, answer=list[DeprecatedFeature])
async def list_deprecated_used(call: Call) -> Response:
    """Answers GET /api/deprecated-features/used."""
    return reply([deprecated(name) for name in DEPRECATED if await is_used(call, name)])


def deprecated(name: str) -> Item:
    """A deprecated feature as JSON."""
    description, anchor = DEPRECATED[name]
    return {
        "name": name,
        "desc": description,
        "deprecation_phase": "permitted_by_default",
        "doc_url": ANNOUNCEMENT + anchor,
        "provided_by": "rabbit",
    }


async def is_used(call: Call, name: str) -> bool:
    """Return True if a deprecated feature is in use."""
    if name == "global_qos":
        sessions = call.broker.sessions.by_id.values()
        return any(channel.global_prefetch for session in sessions for channel in session.channels.values())
    async for _, queue in call.work.over(await listed_queues(call, call.broker.topology.vhosts)):
        if not queue.durable and not queue.exclusive:
            return True
    return False


@operation("Lists extensions of RabbitMQ's web interface: there are none", folds=Folds.NONE, answer=list[object])
async def extensions(call: Call) -> Response:
    """Answers GET /api/extensions: no pages of RabbitMQ's own web interface are served."""
    return reply([])


@operation("Says how a browser may log in", folds=Folds.NONE, answer=Authentication)
async def auth(call: Call) -> Response:
    """Answers GET /api/auth."""
    return reply({"oauth_enabled": False})


@operation(
    "Shows the configuration of the node",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    answer=Media("text/plain", "A setting a line"),
)
async def configuration(call: Call) -> Response:
    """Answers with the configuration as text, a setting a line.

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
    """Answers DELETE /api/reset. RabbitMQ forgets the samples of its statistics; ours expire by themselves."""
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
    """Answers POST /api/upgrade/finalize."""
    call.require()
    try:
        before = await finalize(call.broker, call.actor())
    except OlderNodes as error:
        raise ApiError(409, "older_nodes", str(error)) from None
    await call.durable()
    return reply({"before": before, "after": call.broker.topology.machine_version})
