"""Runtime parameters, global parameters, policies and operator policies (S-014, S-017, S-165, S-167)."""

from rewindmq.engine.cli.client import Json
from rewindmq.engine.cli.columns import Column, Item, fields, rows_of
from rewindmq.engine.cli.lookups import (
    NO_PARAMETER,
    compact,
    definition_argument,
    json_argument,
    list_in_vhost,
    no_parameter_here,
)
from rewindmq.engine.cli.rows import Asked, Row, commands
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import command, option

VALUE: dict[str, Column] = {"value": lambda item: compact(item["value"])}
PARAMETER = fields("component name") | VALUE


def value_of(asked: Asked) -> Json:
    """Return the content with a value, which is JSON."""
    return {"value": json_argument("value", asked["value"])}


def definition_of(item: Item) -> str:
    """Return the definition of a policy."""
    return compact(item["definition"])


def policy_of(asked: Asked) -> Json:
    """Return the content of a policy."""
    return {
        "pattern": asked["pattern"],
        "definition": definition_argument(asked["definition"]),
        "priority": asked["priority"],
        "apply-to": asked["apply_to"],
    }


def show_no_policies(asked: Asked, answer: list[Json]) -> None:
    """Print the empty table as a line, as rabbitmqctl does."""
    if not answer:
        asked.settings.banner("")


@command("list_parameters")
def list_parameters(settings: CliSettings) -> None:
    """List the runtime parameters of a virtual host."""
    settings.banner(f'Listing runtime parameters for vhost "{settings.vhost_name}" ...')
    client = settings.client()
    list_in_vhost(client, settings, "vhost-limits")  # raises when the virtual host is missing
    found = [each for each in client.get("parameters") if each["vhost"] == settings.vhost_name]
    settings.show(rows_of(found, list(PARAMETER), PARAMETER))


POLICY = {**fields("vhost name pattern apply-to"), "definition": definition_of, **fields("priority")}
PRIORITY = option("--priority", "Of several matching policies the highest applies.", int, 0, show_default=True)
KINDS = "classic_queues, quorum_queues or streams."

PARAMETERS = commands(
    Row(
        "set_parameter COMPONENT NAME VALUE",
        "Set a runtime parameter of a component. VALUE is JSON.",
        'Setting runtime parameter "{name}" for component "{component}" to "{value}" in vhost "{vhost}" ...',
        "PUT parameters/{component}/{vhost}/{name}",
        body=value_of,
    ),
    Row(
        "clear_parameter COMPONENT NAME",
        "Remove a runtime parameter.",
        'Clearing runtime parameter "{name}" for component "{component}" on vhost "{vhost}" ...',
        "DELETE parameters/{component}/{vhost}/{name}",
        refused=no_parameter_here,
    ),
    list_parameters,
    Row(
        "set_global_parameter NAME VALUE",
        "Set a global runtime parameter. VALUE is JSON.",
        'Setting global runtime parameter "{name}" to "{value}" ...',
        "PUT global-parameters/{name}",
        body=value_of,
    ),
    Row(
        "clear_global_parameter NAME",
        "Remove a global runtime parameter.",
        'Clearing global runtime parameter "{name}" ...',
        "DELETE global-parameters/{name}",
        refused=NO_PARAMETER,
    ),
    Row(
        "list_global_parameters",
        "List the global runtime parameters.",
        "Listing global runtime parameters ...",
        "GET global-parameters",
        fields("name") | VALUE,
    ),
)

POLICIES = commands(
    Row(
        "set_policy NAME PATTERN DEFINITION",
        "Set a policy for the queues and exchanges whose names match PATTERN.\n\nDEFINITION is JSON.",
        'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}"'
        ' for vhost "{vhost}" ...',
        "PUT policies/{vhost}/{name}",
        body=policy_of,
        params=(PRIORITY, option("--apply-to", f"all, queues, exchanges, {KINDS}", default="all")),
        examples=("rewindmq set_policy short '^orders\\.' '{\"max-length\":1000}' --apply-to queues",),
    ),
    Row(
        "clear_policy NAME",
        "Remove a policy.",
        'Clearing policy "{name}" on vhost "{vhost}" ...',
        "DELETE policies/{vhost}/{name}",
        refused=no_parameter_here,
    ),
    Row(
        "list_policies",
        "List the policies of a virtual host.",
        'Listing policies for vhost "{vhost}" ...',
        "GET policies/{vhost}",
        POLICY,
        then=show_no_policies,
    ),
    Row(
        "set_operator_policy NAME PATTERN DEFINITION",
        "Set limits that no policy and no queue argument exceeds.\n\nDEFINITION is JSON.",
        'Setting operator policy override "{name}" for pattern "{pattern}" to "{definition}" with priority'
        ' "{priority}" for vhost "{vhost}" ...',
        "PUT operator-policies/{vhost}/{name}",
        body=policy_of,
        params=(PRIORITY, option("--apply-to", f"all, queues, {KINDS}", default="all")),
        examples=("rewindmq set_operator_policy cap '.*' '{\"max-length\":100000}'",),
    ),
    Row(
        "clear_operator_policy NAME",
        "Remove an operator policy.",
        'Clearing operator policy "{name}" on vhost "{vhost}" ...',
        "DELETE operator-policies/{vhost}/{name}",
        refused=no_parameter_here,
    ),
    Row(
        "list_operator_policies",
        "List the operator policies of a virtual host.",
        'Listing operator policy overrides for vhost "{vhost}" ...',
        "GET operator-policies/{vhost}",
        POLICY,
        then=show_no_policies,
    ),
)
