"""Which partitions a node folds before it answers a request: no more than the answer needs.

A node may have paused partitions (cluster/modes.py). What a handler looks at says which of them the node folds first. A
handler that is in none of these sets looks at any queue: then the node folds every partition.
"""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from rewindmq.engine.http import listeners, places
from rewindmq.engine.http.call import Call
from rewindmq.engine.http.resources import (
    access,
    bindings,
    clients,
    clock,
    definitions,
    erasures,
    evidence,
    exchanges,
    features,
    health,
    limits,
    marks,
    messages,
    outcomes,
    overview,
    parameters,
    past,
    policies,
    queues,
    quorum,
    vhosts,
)

Handler = Callable[[Call], Awaitable[Response]]

# Modules of handlers that never look at a queue.
LOOK_AT_NO_QUEUE = {module.__name__ for module in (access, clock, erasures, health, limits, listeners, parameters)}
# The other handlers of these modules do. A publish folds what it needs by itself, as it is known when it is routed.
LOOK_AT_NO_QUEUE_EITHER = {
    bindings.to_exchange,
    clients.close_connection,
    clients.close_user_connections,
    evidence.check_seals,
    evidence.list_audits,
    evidence.list_seals,
    exchanges.declare,
    exchanges.delete,
    exchanges.publish,
    features.auth,
    features.configuration,
    features.enable_feature_flag,
    features.extensions,
    features.list_deprecated,
    features.list_feature_flags,
    features.reset,
    marks.list_all,
    marks.show,
    marks.delete,
    overview.set_cluster_name,
    overview.set_limit,
    overview.set_log_level,
    places.near,
    vhosts.put_vhost,
    vhosts.start_vhost,
}
# They show counters: those of the fold, or those that the owner of the partition has published.
LOOK_AT_COUNTERS = {
    overview.overview,
    overview.whoami,
    overview.version,
    overview.nodes,
    overview.node,
    overview.memory,
    overview.cluster_name,
    clients.connections,
    clients.connection,
    clients.user_connections,
    clients.vhost_connections,
    clients.connection_channels,
    clients.channels,
    clients.channel,
    clients.vhost_channels,
    exchanges.list_all,
    exchanges.list_vhost,
    exchanges.show,
    policies.list_all,
    policies.list_all_operator,
    policies.list_vhost,
    policies.list_vhost_operator,
    policies.show,
    policies.show_operator,
    vhosts.list_vhosts,
    vhosts.show_vhost,
    queues.list_all,
    queues.list_vhost,
    bindings.list_all,
    bindings.list_vhost,
    bindings.from_exchange,
    definitions.export_all,
    definitions.export_vhost,
    features.list_deprecated_used,
    places.list_all,
}
# They show consumers: those of the fold, or those that the owner of the partition has published.
LOOK_AT_CONSUMERS = {clients.consumers, clients.vhost_consumers}
# They look at the queue in the path, and at no other one.
LOOK_AT_ONE_QUEUE = {
    queues.show,
    queues.declare,
    queues.delete,
    queues.purge,
    queues.act,
    queues.unacked,
    queues.peek,
    queues.pause,
    queues.resume,
    messages.get,
    messages.remove,
    messages.delete,
    bindings.of_queue,
    quorum.status,
}
# They look at the queue that is the destination in the path, if it is one.
LOOK_AT_THE_DESTINATION = {bindings.between, bindings.bind, bindings.show, bindings.unbind}
# They look at the queue in the path, and the queue and its vhost may be gone.
LOOK_AT_THE_PAST_OF_ONE = {past.at, outcomes.show_depth, outcomes.show_changes}


async def fold_for(handler: Handler, call: Call) -> None:
    """Fold the partitions that the handler needs, as far as this node does not.

    A vhost that does not exist, or that the user may not see, is refused by the handler without a fold."""
    homes = call.broker.queues
    if handler.__module__ in LOOK_AT_NO_QUEUE or handler in LOOK_AT_NO_QUEUE_EITHER:
        return
    if handler in LOOK_AT_COUNTERS:
        await homes.enter_uncounted()
    elif handler in LOOK_AT_CONSUMERS:
        await homes.enter_unlisted()
    elif handler in LOOK_AT_THE_DESTINATION:
        vhost = call.segment("vhost")
        if call.segment("kind") == "q" and vhost in call.visible_vhosts():
            await homes.partition_for(vhost, call.segment("destination")).enter()
    elif handler in LOOK_AT_ONE_QUEUE or handler in LOOK_AT_THE_PAST_OF_ONE:
        vhost = call.segment("vhost")
        if handler in LOOK_AT_THE_PAST_OF_ONE or vhost in call.visible_vhosts():
            await homes.partition_for(vhost, call.segment("queue")).enter()
    else:
        await homes.enter_all()
