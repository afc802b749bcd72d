"""Errors about a missing thing, the same in all commands, and arguments that are JSON.

The API answers 404 where a thing or its virtual host is missing, and does not say which of the two. rabbitmqctl says
which, so some of these functions ask once more.
"""

import json

from rewindmq.engine.cli.client import Client, Json, RequestRefused
from rewindmq.engine.cli.exits import DATA, NO_USER, UNAVAILABLE, CliError
from rewindmq.engine.cli.rows import Asked, on
from rewindmq.engine.cli.settings import CliSettings

NO_PARAMETER = on(404, UNAVAILABLE, "Parameter does not exist")  # RabbitMQ's text, also for a policy and a limit


def no_parameter_here(asked: Asked, refused: RequestRefused) -> CliError | None:
    """Return the error of a missing virtual host, or of a missing policy, limit or parameter in it."""
    if refused.status == 404:
        list_in_vhost(asked.client, asked.settings, "policies")
    return NO_PARAMETER(asked, refused)


def unanswered(asked: Asked, refused: RequestRefused) -> CliError:
    """Return the error of a question about the past that has no answer, or makes no sense."""
    return CliError(DATA, refused.reason) if refused.status in (400, 404) else refused


def no_such_vhost(vhost: str) -> CliError:
    """Return the error of a command whose virtual host does not exist."""
    return CliError(DATA, f"Virtual host '{vhost}' does not exist")


def find_user(client: Client, name: str) -> Json:
    """Return a user as the API describes it. Raises the error of a missing user."""
    try:
        return client.get_one("users", name)
    except RequestRefused as refused:
        gone = CliError(NO_USER, f'User "{name}" does not exist')
        raise gone if refused.status == 404 else refused from None


def find_vhost(client: Client, name: str) -> Json:
    """Return a virtual host as the API describes it. Raises the error of a missing virtual host."""
    try:
        return client.get_one("vhosts", name)
    except RequestRefused as refused:
        raise no_such_vhost(name) if refused.status == 404 else refused from None


def list_in_vhost(client: Client, settings: CliSettings, *segments: str, **query: str) -> list[Json]:
    """Return a listing of one virtual host. Raises the error of a missing virtual host."""
    try:
        return client.get(*segments, settings.vhost_name, **query)
    except RequestRefused as refused:
        raise no_such_vhost(settings.vhost_name) if refused.status == 404 else refused from None


def json_argument(name: str, text: str) -> object:
    """Return the value of an argument that is JSON. `name`: what the argument is, for the error."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(DATA, f"the {name} is not JSON ({error}): {text}") from None


def definition_argument(text: str) -> Json:
    """Return the value of an argument that is a JSON object."""
    definition = json_argument("definition", text)
    if not isinstance(definition, dict):
        raise CliError(DATA, f"the definition is not a JSON object such as '{{\"max-length\":10}}': {text}")
    return definition


def compact(value: object) -> str:
    """JSON without spaces, as rabbitmqctl prints it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
