"""Finds what a command names, and says which thing is missing.

The API answers 404 where a thing or its virtual host is missing, and does not say which of the two. rabbitmqctl says
which, so these functions ask once more. Each missing thing has one error text, the same in all commands.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from rewindmq.engine.cli.client import Client, Json, Refused
from rewindmq.engine.cli.exits import DATA, NO_USER, UNAVAILABLE, CliError
from rewindmq.engine.cli.settings import Settings


def no_such_vhost(vhost: str) -> CliError:
    """The error of a command whose virtual host does not exist."""
    return CliError(DATA, f"Virtual host '{vhost}' does not exist")


def no_such_user(name: str) -> CliError:
    """The error of a command whose user does not exist."""
    return CliError(NO_USER, f'User "{name}" does not exist')


def no_such_parameter() -> CliError:
    """The error where a policy, a limit or a parameter does not exist: RabbitMQ's text for all three."""
    return CliError(UNAVAILABLE, "Parameter does not exist")


@contextmanager
def missing(error: CliError) -> Iterator[None]:
    """Raises `error` where the API answers 404."""
    try:
        yield
    except Refused as refused:
        raise error if refused.status == 404 else refused from None


def find_user(client: Client, name: str) -> Json:
    """A user as the API describes it. Raises the error of a missing user."""
    with missing(no_such_user(name)):
        return client.get_one("users", name)


def find_vhost(client: Client, name: str) -> Json:
    """A virtual host as the API describes it. Raises the error of a missing virtual host."""
    with missing(no_such_vhost(name)):
        return client.get_one("vhosts", name)


def list_in_vhost(client: Client, settings: Settings, *segments: str, **query: str) -> list[Json]:
    """A listing of one virtual host. Raises the error of a missing virtual host."""
    with missing(no_such_vhost(settings.vhost_name)):
        return client.get(*segments, settings.vhost_name, **query)


def put_in_vhost(settings: Settings, segments: tuple[str, ...], name: str, content: Json) -> None:
    """Sets a policy, a limit or a parameter. Raises the error of a missing virtual host."""
    with missing(no_such_vhost(settings.vhost_name)):
        settings.client().put(*segments, settings.vhost_name, name, content=content)


def clear_in_vhost(settings: Settings, segments: tuple[str, ...], name: str) -> None:
    """Removes a policy, a limit or a parameter. Raises the error of a missing virtual host, or of a missing thing."""
    client = settings.client()
    try:
        client.delete(*segments, settings.vhost_name, name)
    except Refused as refused:
        if refused.status != 404:
            raise
        list_in_vhost(client, settings, *segments)
        raise no_such_parameter() from None


def json_argument(name: str, text: str) -> object:
    """The value of an argument that is JSON. `name`: what the argument is, for the error."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(DATA, f"the {name} is not JSON ({error}): {text}") from None


def definition_argument(text: str) -> Json:
    """The value of an argument that is a JSON object."""
    definition = json_argument("definition", text)
    if not isinstance(definition, dict):
        raise CliError(DATA, f"the definition is not a JSON object such as '{{\"max-length\":10}}': {text}")
    return definition


def compact(value: object) -> str:
    """JSON without spaces, as rabbitmqctl prints it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
