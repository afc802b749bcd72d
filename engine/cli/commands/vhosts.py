"""Virtual hosts: create, describe, trace, delete. Limits of virtual hosts and users: {"max-connections":64}."""

from typing import cast

import click

from rewindmq.engine.cli.client import Client, Json
from rewindmq.engine.cli.exits import DATA, USAGE, CliError
from rewindmq.engine.cli.lookups import (
    compact,
    definition_argument,
    find_user,
    find_vhost,
    list_in_vhost,
    no_parameter_here,
)
from rewindmq.engine.cli.rows import Asked, Row, commands, ends, on, says
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import command, flag, option

NAME = click.Argument(["name"], required=False, default="guest")
QUEUE_TYPES = ("quorum", "classic", "stream")
DESCRIBED = (
    option("-d --description", "A text that describes the virtual host."),
    option("--tags TAG,TAG", "Tags, separated by commas."),
    option("--default-queue-type TYPE", "Type of queues that are declared without one: quorum, classic or stream."),
)


def require_known_type(default_queue_type: str | None) -> None:
    """CliError for a queue type that does not exist."""
    if default_queue_type not in (None, *QUEUE_TYPES):
        raise CliError(
            DATA,
            f"(argument validation): Bad argument: Default queue type must be one of:"
            f" {', '.join(QUEUE_TYPES)}. Provided: {default_queue_type}",
        )


@command("add_vhost NAME", *DESCRIBED)
def add_vhost(settings: CliSettings, name: str, **metadata: str | None) -> None:
    """Create a virtual host. An existing virtual host stays as it is."""
    if not name:
        raise CliError(DATA, "(argument validation): Bad argument: vhost name cannot be an empty string")
    require_known_type(metadata["default_queue_type"])
    settings.banner(f'Adding vhost "{name}" ...')
    client = settings.client()
    if not client.exists("vhosts", name):
        client.put("vhosts", name, content={"description": "", "tags": ""} | given(metadata))


def given(metadata: dict[str, str | None]) -> Json:
    """Return the metadata that were given."""
    return {key: value for key, value in metadata.items() if value is not None}


def checked(asked: Asked) -> None:
    """CliError unless something is to be changed, to something that exists."""
    if not given_in(asked):
        raise CliError(USAGE, "(argument validation): not enough arguments: give a description, tags or a type")
    require_known_type(asked["default_queue_type"])


def given_in(asked: Asked) -> Json:
    """Return the metadata that update_vhost_metadata is to change."""
    return given({name: asked[name] for name in ("description", "tags", "default_queue_type")})


def metadata_of(client: Client, name: str) -> Json:
    """Return the metadata of a virtual host. Raises the error of a missing virtual host."""
    return cast(Json, find_vhost(client, name)["metadata"])


def limits_of_vhost(asked: Asked) -> Json:
    """Return the content that sets the limits of a virtual host."""
    return {"value": definition_argument(asked["definition"])}


def clearing_limits(asked: Asked) -> str:
    """Return the banner of clear_user_limits."""
    what = "all limits" if asked["limit"] == "all" else '"{limit}" limit'
    return asked.text(f'Clearing {what} for user "{{name}}" ...')


def limits_of_user(asked: Asked) -> Json:
    """Return the content that sets limits of a user, and keeps the rest."""
    limits = definition_argument(asked["definition"])
    return {"tags": find_user(asked.client, asked["name"])["tags"], "keep_password": True, "limits": limits}


@command("list_vhost_limits", flag("--global everywhere", "The limits of all virtual hosts."))
def list_vhost_limits(settings: CliSettings, everywhere: bool) -> None:
    """List the limits of a virtual host, or of all."""
    client = settings.client()
    if everywhere:
        settings.banner("Listing limits for all vhosts ...")
        rows = [{"vhost": each["vhost"], "limits": compact(each["value"])} for each in client.get("vhost-limits")]
        settings.show(rows)
        return
    settings.banner(f'Listing limits for vhost "{settings.vhost_name}" ...')
    found = list_in_vhost(client, settings, "vhost-limits")
    for each in found:
        click.echo(compact(each["value"]))
    if not found:
        settings.banner("")  # as rabbitmqctl


@command("list_user_limits", flag("--global everyone", "The limits of all users."), NAME)
def list_user_limits(settings: CliSettings, everyone: bool, name: str) -> None:
    """List the limits of a user, or of all.

    NAME is guest by default. (rabbitmqctl has --user NAME for it, which is the login here.)"""
    client = settings.client()
    if everyone:
        settings.banner("Listing limits for all users ...")
        rows = [{"user": each["user"], "limits": compact(each["value"])} for each in client.get("user-limits")]
        settings.show(rows)
        return
    settings.banner(f'Listing limits for user "{name}" ...')
    click.echo(compact(find_user(client, name)["limits"]))


def tracing(name: str, doing: str, done: str, on: bool, help: str) -> Row:
    """Return a command that switches tracing in a virtual host on or off."""
    return Row(
        name,
        help,
        f'{doing} tracing for vhost "{{vhost}}" ...',
        "PUT vhosts/{vhost}",
        body=lambda asked: metadata_of(asked.client, asked["vhost"]) | {"tracing": on},
        then=ends(f"Trace {done} for vhost {{vhost}}"),
    )


VHOSTS = commands(
    add_vhost,
    Row(
        "update_vhost_metadata NAME",
        "Change the description, tags or default queue type of a virtual host.",
        'Updating metadata of vhost "{name}" ...',
        "PUT vhosts/{name}",
        body=lambda asked: metadata_of(asked.client, asked["name"]) | given_in(asked),
        check=checked,
        params=DESCRIBED,
    ),
    Row(
        "set_vhost_tags NAME [TAG]...",
        "Set the tags of a virtual host. Without TAG all tags are removed.",
        'Setting tags for virtual host "{name}" to [{tag}] ...',
        "PUT vhosts/{name}",
        body=lambda asked: metadata_of(asked.client, asked["name"]) | {"tags": list(asked["tag"])},
    ),
    Row(
        "delete_vhost NAME",
        "Delete a virtual host with its queues and exchanges.",
        'Deleting vhost "{name}" ...',
        "DELETE vhosts/{name}",
        refused=on(404, DATA, "Virtual host '{name}' does not exist"),
    ),
    Row(
        "restart_vhost",
        "Check that a virtual host exists: an existing one always runs.",
        "Trying to restart vhost '{vhost}' on node '{node}' ...",
        "GET vhosts/{vhost}",
        then=says("Vhost '{vhost}' is already running on node '{node}'"),
    ),
    tracing(
        "trace_on",
        "Starting",
        "enabled",
        True,
        "Copy all published and delivered messages to amq.rabbitmq.trace.\n\n"
        "Holds for a virtual host, until trace_off or until the node stops.",
    ),
    tracing("trace_off", "Stopping", "disabled", False, "Stop the copies of trace_on."),
)

LIMITS = commands(
    Row(
        "set_vhost_limits DEFINITION",
        "Set the limits of a virtual host: max-connections, max-queues.\n\n"
        "Limits that are not in DEFINITION (JSON) are removed.",
        'Setting vhost limits to "{definition}" for vhost "{vhost}" ...',
        "PUT parameters/vhost-limits/{vhost}/limits",
        body=limits_of_vhost,
        examples=("rewindmq set_vhost_limits '{\"max-connections\":64}'",),
    ),
    Row(
        "clear_vhost_limits",
        "Remove all limits of a virtual host.",
        'Clearing vhost "{vhost}" limits ...',
        "DELETE parameters/vhost-limits/{vhost}/limits",
        refused=no_parameter_here,
    ),
    list_vhost_limits,
    Row(
        "set_user_limits NAME DEFINITION",
        "Set limits of a user: max-connections, max-channels.\n\nLimits that are not in DEFINITION (JSON) stay.",
        'Setting user limits to "{definition}" for user "{name}" ...',
        "PUT users/{name}",
        body=limits_of_user,
    ),
    Row(
        "clear_user_limits NAME LIMIT",
        "Remove a limit of a user.\n\nLIMIT is max-connections, max-channels or all.",
        clearing_limits,
        "DELETE user-limits/{name}/{limit}",
    ),
    list_user_limits,
)
