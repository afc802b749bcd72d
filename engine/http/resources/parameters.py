"""Runtime parameters and global parameters over HTTP, for policymakers and administrators."""

from starlette.responses import Response

from rewindmq.engine.broker.parameters import all_parameters
from rewindmq.engine.definitions.shapes import GlobalParameterView, ParameterView
from rewindmq.engine.host.loop_share import by_key
from rewindmq.engine.http.call import Call, done, not_found, reply
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import POLICYMAKER, Folds, operation
from rewindmq.engine.http.shapes.topology import ParameterWish


async def parameters_in(call: Call, vhosts: set[str], component: str | None = None) -> Response:
    """Return the answer with the parameters of these vhosts, or of one component."""

    def wanted(key: tuple[str, str, str]) -> bool:
        return key[0] in vhosts and component in (None, key[1])

    return await listed(call, await by_key(call.work, all_parameters(call.broker.topology), wanted), ParameterView.of)


@operation("Lists the runtime parameters", folds=Folds.NONE, who=POLICYMAKER, listing=ParameterView)
async def list_all(call: Call) -> Response:
    """Answer GET /api/parameters."""
    call.require_policymaker()
    return await parameters_in(call, set(call.visible_vhosts()))


@operation("Lists the parameters of a component", folds=Folds.NONE, who=POLICYMAKER, listing=ParameterView)
async def list_component(call: Call) -> Response:
    """Answer GET /api/parameters/{component}."""
    call.require_policymaker()
    return await parameters_in(call, set(call.visible_vhosts()), call.segment("component"))


@operation(
    "Lists the parameters of a component in a virtual host", folds=Folds.NONE, who=POLICYMAKER, listing=ParameterView
)
async def list_vhost(call: Call) -> Response:
    """Answer GET /api/parameters/{component}/{vhost}."""
    vhost = call.policymakers_vhost
    return await parameters_in(call, {vhost}, call.segment("component"))


def parameter_in_path(call: Call) -> ParameterView | None:
    """Return the parameter in the path; None if there is none."""
    vhost, name = call.policymakers_vhost, call.segment("name")
    found = all_parameters(call.broker.topology).get((vhost, call.segment("component"), name))
    return None if found is None else ParameterView.of(found)


@operation("Shows a parameter", folds=Folds.NONE, who=POLICYMAKER, answer=ParameterView)
async def show(call: Call) -> Response:
    """Answer GET /api/parameters/{component}/{vhost}/{name}."""
    found = parameter_in_path(call)
    if found is None:
        raise not_found()
    return reply(found)


@operation(
    "Sets a parameter", folds=Folds.IF_CHANGED, who=POLICYMAKER, body=ParameterWish, answers={201: None, 204: None}
)
async def put(call: Call) -> Response:
    """Answer PUT /api/parameters/{component}/{vhost}/{name}."""
    new = parameter_in_path(call) is None
    where = (call.segment("vhost"), call.segment("component"), call.segment("name"))
    content = await call.body("value")
    await call.broker.parameters.set(call.actor(), *where, content["value"])
    await call.durable()
    return done(new)


@operation("Clears a parameter", folds=Folds.IF_CHANGED, who=POLICYMAKER, answers={204: None})
async def delete(call: Call) -> Response:
    """Answer DELETE /api/parameters/{component}/{vhost}/{name}."""
    if parameter_in_path(call) is None:
        raise not_found()
    where = (call.segment("vhost"), call.segment("component"), call.segment("name"))
    await call.broker.parameters.clear(call.actor(), *where)
    await call.durable()
    return Response(status_code=204)


# -- global parameters
@operation("Lists the global parameters", folds=Folds.NONE, who=POLICYMAKER, listing=GlobalParameterView)
async def list_global(call: Call) -> Response:
    """Answer GET /api/global-parameters."""
    call.require_policymaker()
    return await listed(call, await by_key(call.work, call.broker.topology.global_parameters), GlobalParameterView.of)


@operation("Shows a global parameter", folds=Folds.NONE, who=POLICYMAKER, answer=GlobalParameterView)
async def show_global(call: Call) -> Response:
    """Answer GET /api/global-parameters/{name}."""
    call.require_policymaker()
    found = call.broker.topology.global_parameters.get(call.segment("name"))
    if found is None:
        raise not_found()
    return reply(GlobalParameterView.of(found))


@operation(
    "Sets a global parameter", folds=Folds.NONE, who=POLICYMAKER, body=ParameterWish, answers={201: None, 204: None}
)
async def put_global(call: Call) -> Response:
    """Answer PUT /api/global-parameters/{name}."""
    call.require_policymaker()
    name = call.segment("name")
    content = await call.body("value")
    new = name not in call.broker.topology.global_parameters
    await call.broker.parameters.set_global(call.actor(), name, content["value"])
    await call.durable()
    return done(new)


@operation("Clears a global parameter", folds=Folds.NONE, who=POLICYMAKER, answers={204: None})
async def delete_global(call: Call) -> Response:
    """Answer DELETE /api/global-parameters/{name}."""
    call.require_policymaker()
    name = call.segment("name")
    if name not in call.broker.topology.global_parameters:
        raise not_found()
    await call.broker.parameters.clear_global(call.actor(), name)
    await call.durable()
    return Response(status_code=204)
