"""Policies and operator policies (S-014, S-017, S-165, S-167)."""

import json

import click

from rewindmq.engine.cli.client import Client, Refused
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, CliError
from rewindmq.engine.cli.settings import Settings, common

COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


def no_such_vhost(vhost: str) -> CliError:
    return CliError(DATA, f"Virtual host '{vhost}' does not exist")


def in_vhost(client: Client, settings: Settings, *segments: str, **query: str) -> list[dict[str, object]]:
    """A listing of one vhost."""
    try:
        return client.get(*segments, settings.home, **query)
    except Refused as refused:
        raise no_such_vhost(settings.home) if refused.status == 404 else refused from None


def show_policies(settings: Settings, kind: str) -> None:
    rows = in_vhost(settings.client(), settings, kind)
    for row in rows:
        row["definition"] = json.dumps(row["definition"], separators=(",", ":"), ensure_ascii=False)
    settings.show(COLUMNS, rows)
    if not rows:
        settings.banner("")  # rabbitmqctl prints the empty table as a line


def definition_from(text: str) -> dict[str, object]:
    try:
        definition = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(DATA, f"the definition is not JSON ({error}): {text}") from None
    if not isinstance(definition, dict):
        raise CliError(DATA, f"the definition is not a JSON object such as '{{\"max-length\":10}}': {text}")
    return definition


def put(settings: Settings, kind: str, name: str, pattern: str, definition: str, priority: int, apply_to: str) -> None:
    content = {
        "pattern": pattern,
        "definition": definition_from(definition),
        "priority": priority,
        "apply-to": apply_to,
    }
    try:
        settings.client().put(kind, settings.home, name, content=content)
    except Refused as refused:
        raise no_such_vhost(settings.home) if refused.status == 404 else refused from None


def clear(settings: Settings, kind: str, name: str) -> None:
    client = settings.client()
    try:
        client.delete(kind, settings.home, name)
    except Refused as refused:
        if refused.status != 404:
            raise
        in_vhost(client, settings, kind)  # which of the two is not there?
        raise CliError(UNAVAILABLE, "Parameter does not exist") from None


@click.command("set_policy")
@click.option("--priority", type=int, default=0, show_default=True, help="The highest of the matching ones applies.")
@click.option(
    "--apply-to",
    default="all",
    show_default=True,
    help="all, queues, exchanges, classic_queues, quorum_queues or streams.",
)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
@common
def set_policy(settings: Settings, name: str, pattern: str, definition: str, priority: int, apply_to: str) -> None:
    """Set or update a policy: DEFINITION (JSON) holds for queues and exchanges whose name matches PATTERN."""
    settings.banner(
        f'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}"'
        f' for vhost "{settings.home}" ...'
    )
    put(settings, "policies", name, pattern, definition, priority, apply_to)


@click.command("clear_policy")
@click.argument("name")
@common
def clear_policy(settings: Settings, name: str) -> None:
    """Remove a policy."""
    settings.banner(f'Clearing policy "{name}" on vhost "{settings.home}" ...')
    clear(settings, "policies", name)


@click.command("list_policies")
@common
def list_policies(settings: Settings) -> None:
    """List the policies of a virtual host."""
    settings.banner(f'Listing policies for vhost "{settings.home}" ...')
    show_policies(settings, "policies")


@click.command("set_operator_policy")
@click.option("--priority", type=int, default=0, show_default=True, help="The highest of the matching ones applies.")
@click.option(
    "--apply-to", default="all", show_default=True, help="all, queues, classic_queues, quorum_queues or streams."
)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
@common
def set_operator_policy(
    settings: Settings, name: str, pattern: str, definition: str, priority: int, apply_to: str
) -> None:
    """Set an operator policy: limits that hold whatever policies and arguments say."""
    settings.banner(
        f'Setting operator policy override "{name}" for pattern "{pattern}" to "{definition}" with priority'
        f' "{priority}" for vhost "{settings.home}" ...'
    )
    put(settings, "operator-policies", name, pattern, definition, priority, apply_to)


@click.command("clear_operator_policy")
@click.argument("name")
@common
def clear_operator_policy(settings: Settings, name: str) -> None:
    """Remove an operator policy."""
    settings.banner(f'Clearing operator policy "{name}" on vhost "{settings.home}" ...')
    clear(settings, "operator-policies", name)


@click.command("list_operator_policies")
@common
def list_operator_policies(settings: Settings) -> None:
    """List the operator policies of a virtual host."""
    settings.banner(f'Listing operator policy overrides for vhost "{settings.home}" ...')
    show_policies(settings, "operator-policies")


COMMANDS = (
    set_policy,
    clear_policy,
    list_policies,
    set_operator_policy,
    clear_operator_policy,
    list_operator_policies,
)
