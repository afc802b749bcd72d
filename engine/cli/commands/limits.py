"""Limits of virtual hosts and users. Limits are given, and listed, as a JSON object: {"max-connections":64}."""

import json

import click

from rewindmq.engine.cli.client import Refused
from rewindmq.engine.cli.commands.access import no_such_user, user_of
from rewindmq.engine.cli.commands.policies import definition_from, in_vhost, no_such_vhost
from rewindmq.engine.cli.exits import UNAVAILABLE, CliError
from rewindmq.engine.cli.settings import Settings, common

VHOST = ("vhost-limits", "limits")  # the parameter that holds the limits of a virtual host


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@click.command("set_vhost_limits")
@click.argument("definition")
@common
def set_vhost_limits(settings: Settings, definition: str) -> None:
    """Set a virtual host's limits: max-connections, max-queues. Those that are not in DEFINITION (JSON) are lifted."""
    settings.banner(f'Setting vhost limits to "{definition}" for vhost "{settings.home}" ...')
    component, name = VHOST
    try:
        settings.client().put(
            "parameters", component, settings.home, name, content={"value": definition_from(definition)}
        )
    except Refused as refused:
        raise no_such_vhost(settings.home) if refused.status == 404 else refused from None


@click.command("clear_vhost_limits")
@common
def clear_vhost_limits(settings: Settings) -> None:
    """Lift all limits of a virtual host."""
    settings.banner(f'Clearing vhost "{settings.home}" limits ...')
    component, name = VHOST
    client = settings.client()
    try:
        client.delete("parameters", component, settings.home, name)
    except Refused as refused:
        if refused.status != 404:
            raise
        in_vhost(client, settings, "vhost-limits")  # which of the two is not there?
        raise CliError(UNAVAILABLE, "Parameter does not exist") from None


@click.command("list_vhost_limits")
@click.option("--global", "everywhere", is_flag=True, help="Of all virtual hosts.")
@common
def list_vhost_limits(settings: Settings, everywhere: bool) -> None:
    """Show a virtual host's limits, or those of all."""
    client = settings.client()
    if everywhere:
        settings.banner("Listing limits for all vhosts ...")
        rows = [{"vhost": each["vhost"], "limits": compact(each["value"])} for each in client.get("vhost-limits")]
        settings.show(("vhost", "limits"), rows)
        return
    settings.banner(f'Listing limits for vhost "{settings.home}" ...')
    found = in_vhost(client, settings, "vhost-limits")
    for each in found:
        click.echo(compact(each["value"]))
    if not found:
        settings.banner("")  # as rabbitmqctl


@click.command("set_user_limits")
@click.argument("name")
@click.argument("definition")
@common
def set_user_limits(settings: Settings, name: str, definition: str) -> None:
    """Set limits of a user: max-connections, max-channels. Those that are not in DEFINITION (JSON) stay."""
    settings.banner(f'Setting user limits to "{definition}" for user "{name}" ...')
    limits, client = definition_from(definition), settings.client()
    tags = user_of(client, name)["tags"]
    client.put("users", name, content={"tags": tags, "keep_password": True, "limits": limits})


@click.command("clear_user_limits")
@click.argument("name")
@click.argument("limit")
@common
def clear_user_limits(settings: Settings, name: str, limit: str) -> None:
    """Lift a limit of a user (max-connections, max-channels), or all of them (all)."""
    what = "all limits" if limit == "all" else f'"{limit}" limit'
    settings.banner(f'Clearing {what} for user "{name}" ...')
    try:
        settings.client().delete("user-limits", name, limit)
    except Refused as refused:
        raise no_such_user(name) if refused.status == 404 else refused from None


@click.command("list_user_limits")
@click.option("--global", "everyone", is_flag=True, help="Of all users.")
@click.argument("name", required=False, default="guest")
@common
def list_user_limits(settings: Settings, everyone: bool, name: str) -> None:
    """Show the limits of a user (default: guest), or those of all. (rabbitmqctl takes --user NAME, which says who asks
    here.)"""
    client = settings.client()
    if everyone:
        settings.banner("Listing limits for all users ...")
        rows = [{"user": each["user"], "limits": compact(each["value"])} for each in client.get("user-limits")]
        settings.show(("user", "limits"), rows)
        return
    settings.banner(f'Listing limits for user "{name}" ...')
    click.echo(compact(user_of(client, name)["limits"]))


COMMANDS = (
    set_vhost_limits,
    clear_vhost_limits,
    list_vhost_limits,
    set_user_limits,
    clear_user_limits,
    list_user_limits,
)
