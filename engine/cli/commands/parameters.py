"""Runtime parameters and global parameters."""

import click

from rewindmq.engine.cli.lookups import (
    clear_in_vhost,
    compact,
    json_argument,
    list_in_vhost,
    missing,
    no_such_parameter,
    put_in_vhost,
)
from rewindmq.engine.cli.settings import Settings, with_settings


@click.command("set_parameter")
@click.argument("component")
@click.argument("name")
@click.argument("value")
@with_settings
def set_parameter(settings: Settings, component: str, name: str, value: str) -> None:
    """Set a runtime parameter of a component. VALUE is JSON."""
    settings.banner(
        f'Setting runtime parameter "{name}" for component "{component}" to "{value}" in vhost'
        f' "{settings.vhost_name}" ...'
    )
    put_in_vhost(settings, ("parameters", component), name, {"value": json_argument("value", value)})


@click.command("clear_parameter")
@click.argument("component")
@click.argument("name")
@with_settings
def clear_parameter(settings: Settings, component: str, name: str) -> None:
    """Remove a runtime parameter."""
    settings.banner(
        f'Clearing runtime parameter "{name}" for component "{component}" on vhost "{settings.vhost_name}" ...'
    )
    clear_in_vhost(settings, ("parameters", component), name)


@click.command("list_parameters")
@with_settings
def list_parameters(settings: Settings) -> None:
    """List the runtime parameters of a virtual host."""
    settings.banner(f'Listing runtime parameters for vhost "{settings.vhost_name}" ...')
    client = settings.client()
    list_in_vhost(client, settings, "vhost-limits")  # raises when the virtual host is missing
    found = [each for each in client.get("parameters") if each["vhost"] == settings.vhost_name]
    columns = ("component", "name", "value")
    settings.show(columns, [each | {"value": compact(each["value"])} for each in found])


@click.command("set_global_parameter")
@click.argument("name")
@click.argument("value")
@with_settings
def set_global_parameter(settings: Settings, name: str, value: str) -> None:
    """Set a global runtime parameter. VALUE is JSON."""
    settings.banner(f'Setting global runtime parameter "{name}" to "{value}" ...')
    settings.client().put("global-parameters", name, content={"value": json_argument("value", value)})


@click.command("clear_global_parameter")
@click.argument("name")
@with_settings
def clear_global_parameter(settings: Settings, name: str) -> None:
    """Remove a global runtime parameter."""
    settings.banner(f'Clearing global runtime parameter "{name}" ...')
    with missing(no_such_parameter()):
        settings.client().delete("global-parameters", name)


@click.command("list_global_parameters")
@with_settings
def list_global_parameters(settings: Settings) -> None:
    """List the global runtime parameters."""
    settings.banner("Listing global runtime parameters ...")
    found = settings.client().get("global-parameters")
    settings.show(("name", "value"), [each | {"value": compact(each["value"])} for each in found])


COMMANDS = (
    set_parameter,
    clear_parameter,
    list_parameters,
    set_global_parameter,
    clear_global_parameter,
    list_global_parameters,
)
