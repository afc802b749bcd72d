"""Runtime parameters and global parameters."""

import json

import click

from rewindmq.engine.cli.client import Refused
from rewindmq.engine.cli.commands.limits import compact
from rewindmq.engine.cli.commands.policies import in_vhost, no_such_vhost
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, CliError
from rewindmq.engine.cli.settings import Settings, common


def value_from(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(DATA, f"the value is not JSON ({error}): {text}") from None


@click.command("set_parameter")
@click.argument("component")
@click.argument("name")
@click.argument("value")
@common
def set_parameter(settings: Settings, component: str, name: str, value: str) -> None:
    """Set a runtime parameter of a component to VALUE (JSON)."""
    settings.banner(
        f'Setting runtime parameter "{name}" for component "{component}" to "{value}" in vhost "{settings.home}" ...'
    )
    try:
        settings.client().put("parameters", component, settings.home, name, content={"value": value_from(value)})
    except Refused as refused:
        raise no_such_vhost(settings.home) if refused.status == 404 else refused from None


@click.command("clear_parameter")
@click.argument("component")
@click.argument("name")
@common
def clear_parameter(settings: Settings, component: str, name: str) -> None:
    """Remove a runtime parameter."""
    settings.banner(f'Clearing runtime parameter "{name}" for component "{component}" on vhost "{settings.home}" ...')
    client = settings.client()
    try:
        client.delete("parameters", component, settings.home, name)
    except Refused as refused:
        if refused.status != 404:
            raise
        in_vhost(client, settings, "parameters", component)  # which of the two is not there?
        raise CliError(UNAVAILABLE, "Parameter does not exist") from None


@click.command("list_parameters")
@common
def list_parameters(settings: Settings) -> None:
    """List the runtime parameters of a virtual host."""
    settings.banner(f'Listing runtime parameters for vhost "{settings.home}" ...')
    client = settings.client()
    in_vhost(client, settings, "vhost-limits")  # is it there?
    found = [each for each in client.get("parameters") if each["vhost"] == settings.home]
    columns = ("component", "name", "value")
    settings.show(columns, [each | {"value": compact(each["value"])} for each in found])


@click.command("set_global_parameter")
@click.argument("name")
@click.argument("value")
@common
def set_global_parameter(settings: Settings, name: str, value: str) -> None:
    """Set a global runtime parameter to VALUE (JSON)."""
    settings.banner(f'Setting global runtime parameter "{name}" to "{value}" ...')
    settings.client().put("global-parameters", name, content={"value": value_from(value)})


@click.command("clear_global_parameter")
@click.argument("name")
@common
def clear_global_parameter(settings: Settings, name: str) -> None:
    """Remove a global runtime parameter."""
    settings.banner(f'Clearing global runtime parameter "{name}" ...')
    try:
        settings.client().delete("global-parameters", name)
    except Refused as refused:
        raise CliError(UNAVAILABLE, "Parameter does not exist") if refused.status == 404 else refused from None


@click.command("list_global_parameters")
@common
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
