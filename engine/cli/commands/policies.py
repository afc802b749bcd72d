"""Policies and operator policies (S-014, S-017, S-165, S-167)."""

import click

from rewindmq.engine.cli.client import Json
from rewindmq.engine.cli.lookups import clear_in_vhost, compact, definition_argument, list_in_vhost, put_in_vhost
from rewindmq.engine.cli.settings import Settings, with_settings

COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


def show_policies(settings: Settings, kind: str) -> None:
    """Lists the policies of the virtual host. `kind`: policies or operator-policies."""
    rows = list_in_vhost(settings.client(), settings, kind)
    for row in rows:
        row["definition"] = compact(row["definition"])
    settings.show(COLUMNS, rows)
    if not rows:
        settings.banner("")  # rabbitmqctl prints the empty table as a line


def put_policy(
    settings: Settings, kind: str, name: str, pattern: str, definition: str, priority: int, apply_to: str
) -> None:
    """Sets a policy of the virtual host. `kind`: policies or operator-policies."""
    content: Json = {
        "pattern": pattern,
        "definition": definition_argument(definition),
        "priority": priority,
        "apply-to": apply_to,
    }
    put_in_vhost(settings, (kind,), name, content)


@click.command("set_policy")
@click.option(
    "--priority", type=int, default=0, show_default=True, help="Of several matching policies the highest applies."
)
@click.option(
    "--apply-to",
    default="all",
    show_default=True,
    help="all, queues, exchanges, classic_queues, quorum_queues or streams.",
)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
@with_settings
def set_policy(settings: Settings, name: str, pattern: str, definition: str, priority: int, apply_to: str) -> None:
    """Set a policy for the queues and exchanges whose names match PATTERN.

    DEFINITION is JSON.

    \b
    Example:
      rewindmq set_policy short '^orders\\.' '{"max-length":1000}' --apply-to queues
    """
    settings.banner(
        f'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}"'
        f' for vhost "{settings.vhost_name}" ...'
    )
    put_policy(settings, "policies", name, pattern, definition, priority, apply_to)


@click.command("clear_policy")
@click.argument("name")
@with_settings
def clear_policy(settings: Settings, name: str) -> None:
    """Remove a policy."""
    settings.banner(f'Clearing policy "{name}" on vhost "{settings.vhost_name}" ...')
    clear_in_vhost(settings, ("policies",), name)


@click.command("list_policies")
@with_settings
def list_policies(settings: Settings) -> None:
    """List the policies of a virtual host."""
    settings.banner(f'Listing policies for vhost "{settings.vhost_name}" ...')
    show_policies(settings, "policies")


@click.command("set_operator_policy")
@click.option(
    "--priority", type=int, default=0, show_default=True, help="Of several matching policies the highest applies."
)
@click.option(
    "--apply-to", default="all", show_default=True, help="all, queues, classic_queues, quorum_queues or streams."
)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
@with_settings
def set_operator_policy(
    settings: Settings, name: str, pattern: str, definition: str, priority: int, apply_to: str
) -> None:
    """Set limits that no policy and no queue argument exceeds.

    DEFINITION is JSON.

    \b
    Example:
      rewindmq set_operator_policy cap '.*' '{"max-length":100000}'
    """
    settings.banner(
        f'Setting operator policy override "{name}" for pattern "{pattern}" to "{definition}" with priority'
        f' "{priority}" for vhost "{settings.vhost_name}" ...'
    )
    put_policy(settings, "operator-policies", name, pattern, definition, priority, apply_to)


@click.command("clear_operator_policy")
@click.argument("name")
@with_settings
def clear_operator_policy(settings: Settings, name: str) -> None:
    """Remove an operator policy."""
    settings.banner(f'Clearing operator policy "{name}" on vhost "{settings.vhost_name}" ...')
    clear_in_vhost(settings, ("operator-policies",), name)


@click.command("list_operator_policies")
@with_settings
def list_operator_policies(settings: Settings) -> None:
    """List the operator policies of a virtual host."""
    settings.banner(f'Listing operator policy overrides for vhost "{settings.vhost_name}" ...')
    show_policies(settings, "operator-policies")


COMMANDS = (
    set_policy,
    clear_policy,
    list_policies,
    set_operator_policy,
    clear_operator_policy,
    list_operator_policies,
)
