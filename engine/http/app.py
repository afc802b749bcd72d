"""The management API as an ASGI application: RabbitMQ's paths and JSON shapes, and our own for the past.

- It runs in the broker's own loop.

- Paths are matched undecoded: `/api/queues/%2F/q` is queue `q` of vhost `/`.
- A request below /api or /metrics needs HTTP Basic, or a browser's login (authentication.py); `/` is open.
  `/metrics` names the vhosts that the user may see. At the port of the metrics it needs no login, as in RabbitMQ.
- A handler raises `ApiError`, or lets the broker's `AmqpError` through; both become {"error", "reason"}.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial, wraps
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rewindmq.engine.errors import AmqpError, ReadOnly
from rewindmq.engine.http import followers, listeners, places, web
from rewindmq.engine.http.authentication import (
    LoginFailed,
    LoginHeldBack,
    authenticate,
)
from rewindmq.engine.http.browsers import Guarded
from rewindmq.engine.http.call import (
    ApiError,
    Call,
    api_error,
    in_time,
)
from rewindmq.engine.http.disconnects import Ending
from rewindmq.engine.http.folds import fold_for
from rewindmq.engine.http.live import Live, paged
from rewindmq.engine.http.login.routes import login_routes
from rewindmq.engine.http.logins import Logins
from rewindmq.engine.http.reference.document import document_text
from rewindmq.engine.http.reference.operation import Folds, Media, operation
from rewindmq.engine.http.refusals import (
    is_negative,
    no_such_path,
    note_refusal,
    read_to_end_in_time,
    refuse,
    refused,
    require_room,
    unexpected,
)
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
    metrics,
    outcomes,
    overview,
    parameters,
    past,
    policies,
    queues,
    quorum,
    repartition,
    restore,
    search,
    state,
    vhosts,
)
from rewindmq.engine.http.statistics import statistics
from rewindmq.engine.rewind.worker import WorkerPool

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

Handler = Callable[[Call], Awaitable[Response]]

# (methods and their handlers) by path, below /api
ROUTES: dict[str, dict[str, Handler]] = {
    **{path: {"GET": same} for path, same in features.FIXED.items()},
    "/overview": {"GET": overview.overview},
    "/whoami": {"GET": overview.whoami},
    "/version": {"GET": overview.version},
    "/nodes": {"GET": overview.nodes},
    "/nodes/{node}": {"GET": overview.node},
    "/nodes/{node}/memory": {"GET": overview.memory},
    "/nodes/{node}/limits/{limit}": {"PUT": overview.set_limit},
    "/nodes/{node}/listeners/suspend": {"POST": listeners.suspend},
    "/nodes/{node}/listeners/resume": {"POST": listeners.resume},
    "/nodes/{node}/app/stop": {"POST": listeners.stop},
    "/nodes/{node}/app/start": {"POST": listeners.resume},
    "/nodes/{node}/log-level": {"PUT": overview.set_log_level},
    "/cluster-name": {"GET": overview.cluster_name, "PUT": overview.set_cluster_name},
    "/feature-flags/{name}/enable": {"PUT": features.enable_feature_flag},
    "/deprecated-features/used": {"GET": features.list_deprecated_used},
    "/config/effective": {"GET": features.configuration},
    "/reset": {"DELETE": features.reset},
    "/reset/{node}": {"DELETE": features.reset},
    "/aliveness-test/{vhost}": {"GET": health.aliveness},
    "/healthchecks/node": {"GET": health.node},
    "/healthchecks/node/{node}": {"GET": health.node},
    "/health/checks/alarms": {"GET": health.alarms},
    "/health/checks/local-alarms": {"GET": health.alarms},
    "/health/checks/certificate-expiration/{within}/{unit}": {"GET": health.certificate_expiration},
    "/health/checks/port-listener/{port}": {"GET": health.port_listener},
    "/health/checks/protocol-listener/{protocol}": {"GET": health.protocol_listener},
    "/health/checks/virtual-hosts": {"GET": health.virtual_hosts},
    "/health/checks/node-is-mirror-sync-critical": {"GET": health.mirror_sync_critical},
    "/health/checks/node-is-quorum-critical": {"GET": quorum.critical},
    "/vhosts": {"GET": vhosts.list_vhosts},
    "/vhosts/{vhost}": {"GET": vhosts.show_vhost, "PUT": vhosts.put_vhost, "DELETE": vhosts.delete_vhost},
    "/vhosts/{vhost}/start/{node}": {"POST": vhosts.start_vhost},
    "/vhosts/{vhost}/restore-unrouted": {"POST": restore.unrouted},
    "/vhosts/{vhost}/permissions": {"GET": access.vhost_permissions},
    "/vhosts/{vhost}/topic-permissions": {"GET": access.vhost_topic_permissions},
    "/vhost-limits": {"GET": limits.list_vhosts_limits},
    "/vhost-limits/{vhost}": {"GET": limits.vhost_limits},
    "/vhost-limits/{vhost}/{name}": {"PUT": limits.put_vhost_limit, "DELETE": limits.delete_vhost_limit},
    "/users": {"GET": access.list_users},
    "/users/bulk-delete": {"POST": access.delete_users},
    "/users/without-permissions": {"GET": access.users_without_permissions},
    "/users/{user}": {"GET": access.show_user, "PUT": access.put_user, "DELETE": access.delete_user},
    "/users/{user}/permissions": {"GET": access.user_permissions},
    "/users/{user}/topic-permissions": {"GET": access.user_topic_permissions},
    "/user-limits": {"GET": limits.list_users_limits},
    "/user-limits/{user}": {"GET": limits.user_limits},
    "/user-limits/{user}/{name}": {"PUT": limits.put_user_limit, "DELETE": limits.delete_user_limit},
    "/auth/hash_password/{password}": {"GET": access.hash_password},
    "/permissions": {"GET": access.list_permissions},
    "/permissions/{vhost}/{user}": {
        "GET": access.show_permissions,
        "PUT": access.put_permissions,
        "DELETE": access.delete_permissions,
    },
    "/definitions": {"GET": definitions.export_all, "POST": definitions.import_all},
    "/definitions/{vhost}": {"GET": definitions.export_vhost, "POST": definitions.import_vhost},
    "/all-configuration": {"GET": definitions.export_all, "POST": definitions.import_all},
    "/topic-permissions": {"GET": access.list_topic_permissions},
    "/topic-permissions/{vhost}/{user}": {
        "GET": access.show_topic_permissions,
        "PUT": access.put_topic_permissions,
        "DELETE": access.delete_topic_permissions,
    },
    "/topic-permissions/{vhost}/{user}/{exchange}": {"DELETE": access.delete_topic_permissions},
    "/parameters": {"GET": parameters.list_all},
    "/parameters/{component}": {"GET": parameters.list_component},
    "/parameters/{component}/{vhost}": {"GET": parameters.list_vhost},
    "/parameters/{component}/{vhost}/{name}": {
        "GET": parameters.show,
        "PUT": parameters.put,
        "DELETE": parameters.delete,
    },
    "/global-parameters": {"GET": parameters.list_global},
    "/global-parameters/{name}": {
        "GET": parameters.show_global,
        "PUT": parameters.put_global,
        "DELETE": parameters.delete_global,
    },
    "/clock": {"GET": clock.show},
    "/clock/repair": {"POST": clock.repair},
    "/upgrade/finalize": {"POST": features.finalize_upgrade},
    "/repartition": {"GET": repartition.show, "POST": repartition.ask},
    "/marks": {"GET": marks.list_all},
    "/marks/{name}": {"GET": marks.show, "PUT": marks.put, "DELETE": marks.delete},
    "/queues": {"GET": queues.list_all},
    "/queues/detailed": {"GET": queues.list_all},
    "/queues/{vhost}": {"GET": queues.list_vhost},
    "/queues/{vhost}/{queue}": {"GET": queues.show, "PUT": queues.declare, "DELETE": queues.delete},
    "/queues/{vhost}/{queue}/contents": {"DELETE": queues.purge},
    "/queues/{vhost}/{queue}/get": {"POST": messages.get},
    "/queues/{vhost}/{queue}/actions": {"POST": queues.act},
    "/queues/{vhost}/{queue}/unacked": {"GET": queues.unacked},
    "/queues/{vhost}/{queue}/peek/{position}": {"GET": queues.peek},
    "/queues/{vhost}/{queue}/bindings": {"GET": bindings.of_queue},
    "/queues/{vhost}/{queue}/at": {"GET": past.at},
    "/history/biography/{vhost}/{message}": {"GET": outcomes.show_biography},
    "/history/depth/{vhost}/{queue}": {"GET": outcomes.show_depth},
    "/history/diff/{vhost}/{queue}": {"GET": outcomes.show_changes},
    "/history/find/{vhost}": {"GET": search.find},
    "/history/find/{vhost}/{queue}": {"GET": search.find},
    "/history/outcomes/{vhost}/{queue}": {"GET": outcomes.show_last},
    "/history/traces/{vhost}": {"GET": outcomes.show_traces},
    "/history/traces/{vhost}/{queue}": {"GET": outcomes.show_traces},
    "/history/what-if/{vhost}/{queue}": {"GET": outcomes.show_what_if},
    "/queues/{vhost}/{queue}/restore": {"POST": restore.post, "DELETE": restore.cancel},
    "/queues/{vhost}/{queue}/messages/remove": {"POST": messages.remove},
    "/queues/{vhost}/{queue}/messages/move": {"POST": messages.move},
    "/queues/{vhost}/{queue}/messages/{id}": {"DELETE": messages.delete},
    "/queues/{vhost}/{queue}/pause": {"PUT": queues.pause},
    "/queues/{vhost}/{queue}/resume": {"PUT": queues.resume},
    "/queues/quorum/{vhost}/{queue}/status": {"GET": quorum.status},
    "/queues/quorum/{vhost}/{queue}/leader": {"POST": quorum.transfer},
    "/queues/quorum/{vhost}/{queue}/replicas/add": {"POST": quorum.add},
    "/queues/quorum/{vhost}/{queue}/replicas/delete": {"DELETE": quorum.delete},
    "/queues/quorum/replicas/on/{node}/grow": {"POST": quorum.grow},
    "/queues/quorum/replicas/on/{node}/shrink": {"DELETE": quorum.shrink},
    "/rebalance/queues": {"POST": quorum.rebalance},
    "/placement": {"GET": places.list_all},
    "/placement/{vhost}/{queue}": {"GET": places.near},
    "/subjects/{subject}": {"DELETE": erasures.erase},
    "/erasures": {"GET": erasures.list_erasures},
    "/expired-bodies": {"GET": erasures.list_expired_bodies},
    "/seals": {"GET": evidence.list_seals},
    "/seals/{partition}/check": {"GET": evidence.check_seals},
    "/audits": {"GET": evidence.list_audits},
    "/quarantine": {"GET": evidence.list_quarantined},
    "/state": {"GET": state.copy},
    "/leader": {"GET": followers.leader},
    "/leader/files/{partition}/{file}": {"GET": followers.file},
    "/leader/keys": {"POST": followers.keys},
    "/followers": {"GET": followers.list_all},
    "/followers/{name}": {"PUT": followers.join, "DELETE": followers.forget},
    "/followers/{name}/fetch": {"POST": followers.fetch},
    "/exchanges": {"GET": exchanges.list_all},
    "/exchanges/{vhost}": {"GET": exchanges.list_vhost},
    "/exchanges/{vhost}/{exchange}": {
        "GET": exchanges.show,
        "PUT": exchanges.declare,
        "DELETE": exchanges.delete,
    },
    "/exchanges/{vhost}/{exchange}/publish": {"POST": exchanges.publish},
    "/exchanges/{vhost}/{exchange}/bindings/source": {"GET": bindings.from_exchange},
    "/exchanges/{vhost}/{exchange}/bindings/destination": {"GET": bindings.to_exchange},
    "/bindings": {"GET": bindings.list_all},
    "/bindings/{vhost}": {"GET": bindings.list_vhost},
    "/bindings/{vhost}/e/{exchange}/{kind}/{destination}": {"GET": bindings.between, "POST": bindings.bind},
    "/bindings/{vhost}/e/{exchange}/{kind}/{destination}/{key}": {"GET": bindings.show, "DELETE": bindings.unbind},
    "/policies": {"GET": policies.list_all},
    "/policies/{vhost}": {"GET": policies.list_vhost},
    "/policies/{vhost}/{name}": {"GET": policies.show, "PUT": policies.put, "DELETE": policies.delete},
    "/policies/{vhost}/{name}/effects": {"GET": policies.show_effects},
    "/operator-policies": {"GET": policies.list_all_operator},
    "/operator-policies/{vhost}": {"GET": policies.list_vhost_operator},
    "/operator-policies/{vhost}/{name}": {
        "GET": policies.show_operator,
        "PUT": policies.put_operator,
        "DELETE": policies.delete_operator,
    },
    "/operator-policies/{vhost}/{name}/effects": {"GET": policies.show_operator_effects},
    "/connections": {"GET": clients.connections},
    "/connections/username/{user}": {"GET": clients.user_connections, "DELETE": clients.close_user_connections},
    "/connections/{name}": {"GET": clients.connection, "DELETE": clients.close_connection},
    "/connections/{name}/channels": {"GET": clients.connection_channels},
    "/vhosts/{vhost}/connections": {"GET": clients.vhost_connections},
    "/channels": {"GET": clients.channels},
    "/channels/{name}": {"GET": clients.channel},
    "/vhosts/{vhost}/channels": {"GET": clients.vhost_channels},
    "/consumers": {"GET": clients.consumers},
    "/consumers/{vhost}": {"GET": clients.vhost_consumers},
}


# Answers that there are as live figures, below /api/live.
LIVE: dict[str, Handler] = {
    "/overview": overview.overview,
    "/queues": queues.list_all,
    "/queues/{vhost}": queues.list_vhost,
    "/queues/{vhost}/{queue}": queues.show,
}
PAGED = {"/queues", "/queues/{vhost}"}  # those of them that are listings

# Handlers without the time limit of an answer: they read history, ask Kafka, wait for the disk, or ask repeatedly.
PATIENT = {
    definitions.import_all,
    definitions.import_vhost,
    past.at,
    search.find,
    outcomes.show_biography,
    outcomes.show_changes,
    outcomes.show_depth,
    outcomes.show_last,
    outcomes.show_traces,
    outcomes.show_what_if,
    policies.show_effects,
    evidence.list_seals,
    evidence.check_seals,
    policies.show_operator_effects,
    restore.post,
    restore.cancel,
    restore.unrouted,
    messages.get,
    state.copy,
    followers.leader,
    followers.file,
    followers.join,
    followers.fetch,
    quorum.status,
    quorum.critical,
    quorum.transfer,
    quorum.add,
    quorum.delete,
    quorum.grow,
    quorum.shrink,
    quorum.rebalance,
}


METRICS = Media("text/plain", "Prometheus' text format. At the port of the metrics it needs no login")


def make_app(broker: "Broker", body_workers: WorkerPool, live: Live | None = None) -> ASGIApp:
    """Return the application. `body_workers` read large bodies, `live` has the live figures; the caller closes them."""
    statistics(broker)  # counting begins here
    live = Live(broker, Logins()) if live is None else live
    logins = live.logins
    read_to_end = partial(read_to_end_in_time, broker)

    def endpoint(
        handler: Callable[[Call], Awaitable[ASGIApp]], of_figures: Handler
    ) -> Callable[[Request], Awaitable[ASGIApp]]:
        """Return the endpoint of a handler. `of_figures`: itself, or the one whose figures it sends again and again."""

        @wraps(handler)
        async def respond(request: Request) -> ASGIApp:
            held: Call | None = None
            response: ASGIApp

            async def attempt() -> ASGIApp:
                nonlocal held
                who = await authenticate(broker, request, logins)
                require_room(request)
                then = broker.topology.users.get(who.user)
                await broker.host.loop_share.turn()
                if held is None:
                    held = Call(request, broker, body_workers, who)
                held.logged_in(who, then)
                held.require_account()
                require_change_allowed(broker, request)
                await fold_for(of_figures, held)
                return await handler(held)

            try:
                assured = broker.certainty.assured(attempt, read_to_end, is_negative)
                if handler in PATIENT:
                    response = await assured
                else:
                    async with in_time():
                        response = await assured
            except ApiError as error:
                note_refusal(broker, request, held, error)
                response = refuse(error, request)
            except AmqpError as error:
                note_refusal(broker, request, held, error)
                response = refuse(api_error(error), request)
            except BaseException:
                if held is not None:
                    held.release()
                raise
            return response if held is None else ReleasingResponse(response, held)

        return respond

    routes = [
        Route("/api" + path, endpoint(handler, handler), methods=[method])
        for path, handlers in ROUTES.items()
        for method, handler in handlers.items()
    ]
    for path, handler in LIVE.items():
        ready = partial(fold_for, handler)
        shown = paged(handler) if path in PAGED else handler
        routes.append(Route("/api/live" + path, endpoint(live.of(shown, ready), handler), methods=["GET"]))
    routes += [*health.ready_routes(broker), *login_routes(broker, logins)]
    routes += metrics_routes(broker, body_workers, logins)
    routes.append(reference_route(routes))
    routes += (Route(path, web.page(path), methods=["GET"]) for path in web.FILES)
    starlette = Starlette(
        routes=routes, exception_handlers={HTTPException: no_such_path, ApiError: refused, Exception: unexpected}
    )
    starlette.router.redirect_slashes = False
    return Ending(Guarded(Undecoded(starlette, broker.config.prometheus_port)))


def reference_route(routes: list[Route]) -> Route:
    """Return the route of the document about all routes, itself included.

    It needs no login, as the desk's files need none: it is about the program, not about this broker. RabbitMQ's own
    reference is open, too."""
    text = cache(lambda: document_text(routes))

    @operation("The OpenAPI document of this API", folds=Folds.NONE, login=False, answer=dict[str, object])
    async def show(request: Request) -> Response:
        return Response(
            await asyncio.to_thread(text), media_type="application/json", headers={"cache-control": "no-cache"}
        )

    return Route("/api/openapi.json", show, methods=["GET"])


def metrics_routes(broker: "Broker", body_workers: WorkerPool, logins: Logins) -> list[Route]:
    """Return the routes of Prometheus, below /metrics.

    They tell what this node has read, also while Kafka is away. A login is refused only when the log says so."""
    read_to_end = partial(read_to_end_in_time, broker)

    async def vhosts_seen(request: Request) -> list[str] | None:
        """Return the vhosts whose names the user may see.

        None: all, at the port of the metrics, which needs no login."""
        if at_port_of_metrics(request.scope, broker.config.prometheus_port):
            return None
        try:
            who = await broker.certainty.assured(
                partial(authenticate, broker, request, logins), read_to_end, is_negative
            )
        except (LoginFailed, LoginHeldBack) as error:
            note_refusal(broker, request, None, error)
            raise
        require_room(request)
        await broker.host.loop_share.turn()
        return Call(request, broker, body_workers, who).monitored_vhosts()

    @operation("Metrics of the node", folds=Folds.NONE, answer=METRICS)
    async def show_metrics(request: Request) -> Response:
        await vhosts_seen(request)
        return await metrics.metrics(broker)

    @operation("Metrics of each queue, channel and connection", folds=Folds.NONE, answer=METRICS)
    async def show_metrics_per_object(request: Request) -> Response:
        return await metrics.metrics(broker, apart=True, seen=await vhosts_seen(request))

    @operation("Chosen metrics of each object", folds=Folds.NONE, query=metrics.CHOICE, answer=METRICS)
    async def show_metrics_detailed(request: Request) -> Response:
        return await metrics.detailed(broker, request, await vhosts_seen(request))

    @operation("Metrics of the memory", folds=Folds.NONE, answer=METRICS)
    async def show_memory_breakdown(request: Request) -> Response:
        await vhosts_seen(request)
        return metrics.memory_breakdown(broker)

    shows = (
        ("", show_metrics),
        ("/per-object", show_metrics_per_object),
        ("/detailed", show_metrics_detailed),
        ("/memory-breakdown", show_memory_breakdown),
    )
    return [Route("/metrics" + path, show, methods=["GET"]) for path, show in shows]


class ReleasingResponse:
    """A response, which releases the memory of its request when its last byte is sent."""

    def __init__(self, response: ASGIApp, call: Call) -> None:
        self.response = response
        self.call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.response(scope, receive, send)
        finally:
            self.call.release()


class Undecoded:
    """Routes by the path as it was sent, so that an encoded slash stays part of its segment.

    At `metrics_port` there are metrics and nothing else."""

    def __init__(self, app: ASGIApp, metrics_port: int | None) -> None:
        self.app = app
        self.metrics_port = metrics_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["raw_path"].decode("ascii", "replace")
            scope["path"] = path.rstrip("/") or "/"  # RabbitMQ takes a trailing slash
            if at_port_of_metrics(scope, self.metrics_port) and not scope["path"].startswith("/metrics"):
                scope["path"] = "/not-here"
        await self.app(scope, receive, send)


def at_port_of_metrics(scope: Scope, metrics_port: int | None) -> bool:
    """Return True if a request came to the port that serves only metrics."""
    return metrics_port is not None and scope["server"][1] == metrics_port


def require_change_allowed(broker: "Broker", request: Request) -> None:
    """Raise ApiError (403) for a request that changes something, of a read-only broker."""
    if broker.config.read_only and request.method not in ("GET", "HEAD"):
        raise api_error(ReadOnly())
