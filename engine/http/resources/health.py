"""Health checks, with RabbitMQ's answers: 200 {"status": "ok"}, or 503 {"status": "failed", "reason": ...} and more."""

import secrets
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rewindmq.engine.http.call import Call, bad_request, natural, not_found, reply
from rewindmq.engine.http.listing import Item
from rewindmq.engine.http.reference.operation import Folds, operation
from rewindmq.engine.http.resources.messages import Taken
from rewindmq.engine.http.resources.overview import node_views
from rewindmq.engine.http.shapes.node import FailedView, PassedView, alarms_of, open_listeners
from rewindmq.engine.rewind.masks import NOTHING
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Argument

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

# Other names of the broker's protocols (rabbit_mgmt_wm_health_check_protocol_listener.erl).
PROTOCOLS = {
    **dict.fromkeys(("amqp091", "amqp0.9.1", "amqp0-9-1", "amqp0_9_1"), "amqp"),
    **dict.fromkeys(("http1", "http1.1", "http_api", "management", "management_ui", "ui"), "http"),
    "amqps": "amqp/ssl",
    "prometheus": "http/prometheus",
}
DAYS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
ALIVENESS = "aliveness-test"


def ok(**more: Any) -> Response:
    """Return the answer of a check that passed."""
    return reply(PassedView(status="ok", **more))


def failed(reason: str, **more: Any) -> Response:
    """Return the answer of a check that failed."""
    return reply(FailedView(status="failed", reason=reason, **more), 503)


@operation("Checks that no alarm is in effect", folds=Folds.NONE, answers={200: PassedView, 503: FailedView})
async def alarms(call: Call) -> Response:
    """Answer whether an alarm is raised on this node.

    An alarm is for memory, for the disk, or for a log or a state that cannot be written (which counts as the
    disk's)."""
    found = alarms_of(call.broker)
    if not found:
        return ok()
    where = "on the node" if call.request.url.path.endswith("local-alarms") else "in the cluster"
    return failed(f"There are alarms in effect {where}", alarms=found)


@operation("Checks that all virtual hosts are up", folds=Folds.NONE, answers={200: PassedView, 503: FailedView})
async def virtual_hosts(call: Call) -> Response:
    """Answer that all vhosts are up: a vhost is never down while the others are up."""
    return ok()


def ready_routes(broker: "Broker") -> list[Route]:
    """Return the checks of balancers and of Kubernetes: does the node take clients? As in RabbitMQ no login is needed.

    503: an operator closed its listeners (`stop_app`), or the node was declared lost and has not joined again."""

    @operation(
        "Checks that the node takes clients",
        folds=Folds.NONE,
        login=False,
        answers={200: PassedView, 503: FailedView},
    )
    async def ready(request: Request) -> Response:
        if not broker.nodes.joined:
            return failed("the node was declared lost and joins again")
        if broker.host.listeners is not None and not broker.host.listeners.open:
            closed = "'rewindmq start_app' or 'resume_listeners' opens them"
            return failed(f"the listeners for clients are suspended: {closed}")
        return ok()

    checks = ("ready-to-serve-clients", "is-in-service")
    return [Route(f"/api/health/checks/{check}", ready, methods=["GET"]) for check in checks]


@operation("Checks mirrors. There are none", folds=Folds.NONE, answers={200: PassedView, 503: FailedView})
async def mirror_sync_critical(call: Call) -> Response:
    """Answer that the check passed: there are no mirrors that could lag behind."""
    if len(call.broker.topology.nodes) > 1:
        return ok()
    return ok(reason="single node cluster")


@operation("Checks that the node listens at a port", folds=Folds.NONE, answers={200: PassedView, 503: FailedView})
async def port_listener(call: Call) -> Response:
    """Answer GET /api/health/checks/port-listener/{port}."""
    port = natural(call.segment("port"))
    if port is None:
        raise bad_request("Invalid port")
    ports = list(dict.fromkeys(listening for _, _, listening in open_listeners(call.broker)))
    if port in ports:
        return ok(port=port)
    return failed("No active listener", missing=port, ports=ports)


@operation("Checks that the node listens for a protocol", folds=Folds.NONE, answers={200: PassedView, 503: FailedView})
async def protocol_listener(call: Call) -> Response:
    """Answer GET /api/health/checks/protocol-listener/{protocol}."""
    asked_for = call.segment("protocol").lower()
    protocol = PROTOCOLS.get(asked_for, asked_for)
    protocols = list(dict.fromkeys(each for each, _, _ in open_listeners(call.broker)))
    if protocol in protocols:
        return ok(protocol=protocol)
    return failed("No active listener", missing=protocol, protocols=protocols)


@operation("Checks that no certificate expires soon", folds=Folds.NONE, answers={200: PassedView, 503: FailedView})
async def certificate_expiration(call: Call) -> Response:
    """Answer whether a certificate of a listener expires soon. It passes if no listener has TLS."""
    within, unit = natural(call.segment("within")), call.segment("unit").lower()
    if within is None:
        raise bad_request("Invalid expiration value.")
    if unit not in DAYS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    config = call.broker.config
    tls = config.tls
    limit = time.time() + within * DAYS[unit] * 86_400
    files = {"certfile": tls and tls.certificate, "cacertfile": tls and tls.ca}
    expiring = {name: end for name, file in files.items() if file and (end := expires_at(file)) <= limit}
    if tls is None or not expiring:
        return ok()
    files_item: Item = {}
    for name, file in files.items():
        day = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(expiring[name])) if name in expiring else None
        files_item |= {name: str(file or ""), f"{name}_expires_on": [day] if day else []}
    expired = [
        {"node": config.node, "protocol": protocol, "interface": address, "port": port} | files_item
        for protocol, address, port in config.listeners
        if protocol in ("amqp/ssl", "https")
    ]
    return failed("Certificates expiring", expired=expired)


def expires_at(certificate: Path) -> float:
    """Return the time at which the first certificate in the file expires, in seconds since 1970."""
    decoded = ssl._ssl._test_decode_cert(str(certificate))  # type: ignore[attr-defined]
    return ssl.cert_time_to_seconds(decoded["notAfter"])


@operation("Checks that the node has no alarm", folds=Folds.NONE, answers={200: PassedView, 503: FailedView})
async def node(call: Call) -> Response:
    """Answer the old health check: the node is there, and has no alarms."""
    asked_for = call.request.path_params.get("node")
    if asked_for is not None:
        name = call.segment("node")
        if all(view.name != name for view in node_views(call.broker)):
            raise not_found()
    if call.broker.turns.blocked is not None:
        return failed(f"resource alarm(s) in effect: {call.broker.turns.blocked}")
    return ok()


@operation(
    "Declares a queue, publishes to it and gets the message back",
    folds=Folds.NAMED,
    answers={200: PassedView, 503: FailedView},
)
async def aliveness(call: Call) -> Response:
    """Answer the aliveness test.

    It declares a queue, publishes to it and gets the message back. All of this is in history."""
    broker = call.broker
    token = secrets.token_bytes(8)
    async with call.session(call.vhost) as session:
        arguments: tuple[Argument, ...] = ()
        await broker.queues.declare(session, ALIVENESS, False, False, False, False, arguments)
        await broker.queues.entered(session, ALIVENESS)
        (destination,) = broker.exchanges.route(session, "", ALIVENESS, None)
        message = Published(destination.route, b"\0\0", body=token, body_size=len(token))
        destination.partition.publish(session.actor, message)
        session.publishes.received += 1
        session.publishes.logged(destination.partition)
        taken = Taken(None, NOTHING.hide)
        await broker.consumers.fetch(session, session.channel, taken, ALIVENESS, True)
        broker.turns.end()
    await call.durable()
    if not taken.messages:
        return failed("aliveness-test queue is empty")
    return ok()
