"""The paths by which a browser logs in and out. A login is refused only when the log says so."""

from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rewindmq.engine.http import authentication
from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.login import form, sign_in
from rewindmq.engine.http.logins import Logins
from rewindmq.engine.http.reference.operation import Folds, Query, operation
from rewindmq.engine.http.refusals import is_negative, note_refusal, read_to_end_in_time, refuse, require_room
from rewindmq.engine.http.shapes.node import LoginWish, WaysToLogInView
from rewindmq.engine.identity.sign_in import SignIn, SignInFailed

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

HERE = Query("here", str, "The address of the desk, as the browser has it")
# What the provider sends along (RFC 6749, RFC 9207).
SENT = (
    Query("code", str, "The code, for which the provider gives a token once"),
    Query("state", str, "That of the sign-in"),
    Query("iss", str, "The issuer"),
    Query("error", str, "Why there is no code"),
    Query("error_description", str, "The same for people"),
)

of_login = partial(operation, folds=Folds.NONE, login=False)


def login_routes(broker: "Broker", logins: Logins) -> list[Route]:
    """Return the routes of /api/login. A login is refused only when the log says so."""
    read_to_end = partial(read_to_end_in_time, broker)

    @of_login(
        "Begins the login of a browser, with a cookie",
        body=LoginWish,
        answers={204: None},
        errors=(401, 408),
    )
    async def log_in(request: Request) -> Response:
        try:
            name, password = await form.name_and_password(request)

            async def attempt() -> Response:
                who = await authentication.log_in(broker, request, name, password)
                require_room(request)
                return form.log_in_browser(broker, request, logins, who)

            return await broker.certainty.assured(attempt, read_to_end, is_negative)
        except ApiError as error:
            note_refusal(broker, request, None, error)
            return refuse(error, request)

    @of_login("Ends the login of a browser", answers={204: None})
    async def log_out(request: Request) -> Response:
        return form.log_out_browser(request, logins)

    provider = SignIn(broker.access.tokens)

    @of_login("Says how a browser may log in", answer=WaysToLogInView)
    async def show(request: Request) -> Response:
        return sign_in.show(provider, request)

    @of_login("Leads a browser to the identity provider", query=(HERE,), answers={303: None})
    async def lead_to_provider(request: Request) -> Response:
        return await sign_in.begin(provider, request)

    @of_login(
        "Leads a browser from the identity provider to the desk",
        query=SENT,
        answers={303: None},
    )
    async def lead_back(request: Request) -> Response:
        try:
            token = await sign_in.token_of(provider, request)

            async def attempt() -> Response:
                who = await authentication.bear(broker, request, token)
                require_room(request)
                return sign_in.logged_in(request, form.log_in_browser(broker, request, logins, who))

            return await broker.certainty.assured(attempt, read_to_end, is_negative)
        except SignInFailed as error:
            return sign_in.failed(provider, request, str(error))
        except ApiError as error:
            note_refusal(broker, request, None, error)
            return sign_in.failed(provider, request, error.reason)

    return [
        Route("/api/login", show, methods=["GET"]),
        Route("/api/login", log_in, methods=["POST"]),
        Route("/api/login", log_out, methods=["DELETE"]),
        Route(sign_in.PATH, lead_to_provider, methods=["GET"]),
        Route(sign_in.CALLBACK, lead_back, methods=["GET"]),
    ]
