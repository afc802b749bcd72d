"""Refused requests: the answer to the client, and the event in the history."""

from typing import TYPE_CHECKING
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rewindmq.engine.errors import AmqpError
from rewindmq.engine.host.admission import AdmittedConnection
from rewindmq.engine.http.authentication import LoginFailed, LoginHeldBack, NotLoggedIn, from_page
from rewindmq.engine.http.call import ApiError, Call, Missing, arrival_of, in_time, mechanism_of, reply, way_of
from rewindmq.engine.http.live import asks_for_stream
from rewindmq.engine.http.logins import cookie_of
from rewindmq.engine.http.shapes.basics import ErrorView
from rewindmq.engine.partition.certainty import REFUSALS

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker


async def read_to_end_in_time(broker: "Broker") -> None:
    """Wait until this node has read to the end of the log. Raises ApiError (503) after the time limit."""
    async with in_time():
        await broker.certainty.wait()


def is_negative(error: Exception) -> bool:
    """Return True if a request was refused because something is missing that another node may have made."""
    return isinstance(error, (REFUSALS, Missing)) or (isinstance(error, ApiError) and error.status == 401)


def require_room(request: Request) -> None:
    """Count the connection as logged in. Raises ApiError (503) when there are too many."""
    admitted: AdmittedConnection | None = request.scope.get("state", {}).get("admitted")
    if admitted is not None and not admitted.log_in():
        raise ApiError(503, "service_unavailable", "too many connections: try again, or close some")


def note_refusal(broker: "Broker", request: Request, call: Call | None, error: ApiError | AmqpError) -> None:
    """Log a login that failed, or a missing right, in the history, and end the turn."""
    if isinstance(error, LoginFailed | LoginHeldBack):
        broker.access.log.login_refused(arrival_of(request), error.user, mechanism_of(request), error.why)
    elif call is not None:
        missing = error.recorded if isinstance(error, AmqpError) else None
        if isinstance(error, ApiError) and error.error == "not_authorised":
            missing = ("", request.url.path)
        caller = None if missing is None else call.caller()
        if missing is not None and caller is not None:
            vhost = unquote(request.path_params.get("vhost", ""))
            broker.access.log.access_refused(caller.session.actor, vhost, way_of(request), missing, str(error))
    broker.turns.end()


def refuse(error: ApiError, request: Request) -> Response:
    """Return the response of an ApiError.

    The realm is RabbitMQ's: clients send their password to that realm only. Of a 401 the desk hears only whether a
    login would help; Basic would make the browser ask for a password itself."""
    response = reply(ErrorView.of(error), error.status)
    if error.status in (429, 503):
        response.headers["retry-after"] = str(error.seconds) if isinstance(error, LoginHeldBack) else "5"
    if error.status == 401 and not (from_page(request) or asks_for_stream(request)):
        response.headers["www-authenticate"] = 'Basic realm="RabbitMQ Management"'
    elif isinstance(error, NotLoggedIn):
        response.headers["www-authenticate"] = f'Cookie realm="RewindMQ Management" cookie-name={cookie_of(request)}'
    return response


async def refused(request: Request, error: Exception) -> Response:
    """Return the response of an ApiError that was raised outside a handler."""
    assert isinstance(error, ApiError)
    return refuse(error, request)


async def no_such_path(request: Request, error: Exception) -> Response:
    """Return the response where no path or no method matches."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        allowed = error.headers if isinstance(error, HTTPException) else None
        response = refuse(ApiError(405, "method_not_allowed", f"{request.method} is not possible here"), request)
        response.headers.update(allowed or {})
        return response
    return refuse(ApiError(status, "Object Not Found", "Not Found"), request)


async def unexpected(request: Request, error: Exception) -> Response:
    """Return the response after a defect of ours.

    Starlette raises the error again after this answer, so that it is logged with its traceback."""
    return refuse(ApiError(500, "internal_error", f"{type(error).__name__}: see the broker's log"), request)
