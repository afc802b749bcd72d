"""Limits of virtual hosts and users, as JSON objects: {"max-connections":64}."""

import click

from rewindmq.engine.cli.lookups import (
    clear_in_vhost,
    compact,
    definition_argument,
    find_user,
    list_in_vhost,
    missing,
    no_such_user,
    put_in_vhost,
)
from rewindmq.engine.cli.settings import Settings, with_settings

VHOST_LIMITS = ("parameters", "vhost-limits")  # a parameter, named limits, holds the limits of a virtual host


@click.command("set_vhost_limits")
@click.argument("definition")
@with_settings
def set_vhost_limits(settings: Settings, definition: str) -> None:
    """Set the limits of a virtual host: max-connections, max-queues.

    Limits that are not in DEFINITION (JSON) are removed.

    \b
    Example:
      rewindmq set_vhost_limits '{"max-connections":64}'
    """
    settings.banner(f'Setting vhost limits to "{definition}" for vhost "{settings.vhost_name}" ...')
    put_in_vhost(settings, VHOST_LIMITS, "limits", {"value": definition_argument(definition)})


@click.command("clear_vhost_limits")
@with_settings
def clear_vhost_limits(settings: Settings) -> None:
    """Remove all limits of a virtual host."""
    settings.banner(f'Clearing vhost "{settings.vhost_name}" limits ...')
    clear_in_vhost(settings, VHOST_LIMITS, "limits")


@click.command("list_vhost_limits")
@click.option("--global", "everywhere", is_flag=True, help="The limits of all virtual hosts.")
@with_settings
def list_vhost_limits(settings: Settings, everywhere: bool) -> None:
    """List the limits of a virtual host, or of all."""
    client = settings.client()
    if everywhere:
        settings.banner("Listing limits for all vhosts ...")
        rows = [{"vhost": each["vhost"], "limits": compact(each["value"])} for each in client.get("vhost-limits")]
        settings.show(("vhost", "limits"), rows)
        return
    settings.banner(f'Listing limits for vhost "{settings.vhost_name}" ...')
    found = list_in_vhost(client, settings, "vhost-limits")
    for each in found:
        click.echo(compact(each["value"]))
    if not found:
        settings.banner("")  # as rabbitmqctl


@click.command("set_user_limits")
@click.argument("name")
@click.argument("definition")
@with_settings
def set_user_limits(settings: Settings, name: str, definition: str) -> None:
    """Set limits of a user: max-connections, max-channels.

    Limits that are not in DEFINITION (JSON) stay."""
    settings.banner(f'Setting user limits to "{definition}" for user "{name}" ...')
    limits, client = definition_argument(definition), settings.client()
    tags = find_user(client, name)["tags"]
    client.put("users", name, content={"tags": tags, "keep_password": True, "limits": limits})


@click.command("clear_user_limits")
@click.argument("name")
@click.argument("limit")
@with_settings
def clear_user_limits(settings: Settings, name: str, limit: str) -> None:
    """Remove a limit of a user.

    LIMIT is max-connections, max-channels or all."""
    what = "all limits" if limit == "all" else f'"{limit}" limit'
    settings.banner(f'Clearing {what} for user "{name}" ...')
    with missing(no_such_user(name)):
        settings.client().delete("user-limits", name, limit)


@click.command("list_user_limits")
@click.option("--global", "everyone", is_flag=True, help="The limits of all users.")
@click.argument("name", required=False, default="guest")
@with_settings
def list_user_limits(settings: Settings, everyone: bool, name: str) -> None:
    """List the limits of a user, or of all.

    NAME is guest by default. (rabbitmqctl has --user NAME for it, which is the login here.)"""
    client = settings.client()
    if everyone:
        settings.banner("Listing limits for all users ...")
        rows = [{"user": each["user"], "limits": compact(each["value"])} for each in client.get("user-limits")]
        settings.show(("user", "limits"), rows)
        return
    settings.banner(f'Listing limits for user "{name}" ...')
    click.echo(compact(find_user(client, name)["limits"]))


COMMANDS = (
    set_vhost_limits,
    clear_vhost_limits,
    list_vhost_limits,
    set_user_limits,
    clear_user_limits,
    list_user_limits,
)
