"""Users' hashes, topic permissions, limits, parameters, vhosts' metadata and definitions, as rabbitmqctl's commands."""

import json
from pathlib import Path

import pytest

from tests.support.commands import Cli, require_failure
from tests.support.running import RunningBroker

HASHED = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"  # of test12


def test_passwords_that_are_hashed_already(cli: Cli) -> None:
    assert cli("add_user", "hashed", HASHED, "--pre-hashed-password").returncode == 0
    assert cli("authenticate_user", "hashed", "test12").returncode == 0
    require_failure(cli("add_user", "other", "!", "--pre-hashed-password"), 65, "Error: not_base64")
    hashed = cli("hash_password", "secret")
    assert hashed.stdout.startswith("Will hash provided password\n")
    assert cli("add_user", "other", hashed.stdout.splitlines()[1], "--pre-hashed-password").returncode == 0
    assert cli("authenticate_user", "other", "secret").returncode == 0
    assert cli("clear_password", "other").stdout == 'Clearing password for user "other" ...\n'
    require_failure(cli("authenticate_user", "other", "secret"), 65, 'Error: failed to authenticate user "other"')
    require_failure(cli("clear_password", "nobody"), 67, 'Error: User "nobody" does not exist')
    for name in ("hashed", "other"):
        cli("delete_user", name)


def test_permissions_in_every_vhost(cli: Cli) -> None:
    cli("add_user", "everywhere", "secret")
    cli("add_vhost", "second")
    assert cli("set_permissions_globally", "everywhere", "^a", "^b", "^c").stdout == (
        'Setting permissions for user "everywhere" in all virtual hosts ...\n'
    )
    assert cli("list_user_permissions", "everywhere", "-s").stdout == "/\t^a\t^b\t^c\nsecond\t^a\t^b\t^c\n"
    require_failure(cli("set_permissions_globally", "nobody", "", "", ""), 67, 'Error: User "nobody" does not exist')
    require_failure(
        cli("set_permissions_globally", "everywhere", "(", "", ""), 65, "Error: invalid regular expression '('"
    )
    cli("delete_vhost", "second")
    cli("delete_user", "everywhere")


def test_topic_permissions(cli: Cli) -> None:
    cli("add_user", "writer", "secret")
    assert cli("set_topic_permissions", "writer", "amq.topic", "^a", "^b").stdout == (
        'Setting topic permissions on "amq.topic" for user "writer" in vhost "/" ...\n'
    )
    cli("set_topic_permissions", "writer", "x", "", ".*")
    assert cli("list_topic_permissions").stdout == (
        'Listing topic permissions for vhost "/" ...\nuser\texchange\twrite\tread\n'
        "writer\tamq.topic\t^a\t^b\nwriter\tx\t\t.*\n"
    )
    assert cli("list_user_topic_permissions", "writer").stdout == (
        'Listing topic permissions for user "writer" ...\n/\tamq.topic\t^a\t^b\n/\tx\t\t.*\n'
    )
    assert cli("clear_topic_permissions", "writer", "x").stdout == (
        'Clearing topic permissions on "x" for user "writer" in vhost "/" ...\n'
    )
    assert cli("clear_topic_permissions", "writer", "x").returncode == 0, "nothing to take"
    assert cli("list_topic_permissions", "-s").stdout == "writer\tamq.topic\t^a\t^b\n"
    assert cli("clear_topic_permissions", "writer").returncode == 0
    assert cli("list_topic_permissions", "-s").stdout == ""
    for command in (("set_topic_permissions", "nobody", "x", "", ""), ("clear_topic_permissions", "nobody")):
        require_failure(cli(*command), 67, 'Error: User "nobody" does not exist')
        require_failure(cli(command[0], "writer", *command[2:], "-p", "nowhere"), 65, "Error: Virtual host 'nowhere'")
    require_failure(cli("set_topic_permissions", "writer", "x", "(", ""), 65, "Error: invalid regular expression '('")
    cli("delete_user", "writer")


def test_limits_of_vhosts(cli: Cli) -> None:
    cli("add_vhost", "limited")
    asked = '{"max-queues": 7, "max-connections": 3}'
    assert cli("set_vhost_limits", asked, "-p", "limited").stdout == (
        f'Setting vhost limits to "{asked}" for vhost "limited" ...\n'
    )
    shown = '{"max-connections":3,"max-queues":7}'
    assert cli("list_vhost_limits", "-p", "limited").stdout == f'Listing limits for vhost "limited" ...\n{shown}\n'
    assert cli("list_vhost_limits", "--global", "-q").stdout == f"vhost\tlimits\nlimited\t{shown}\n"
    assert cli("clear_vhost_limits", "-p", "limited").stdout == 'Clearing vhost "limited" limits ...\n'
    assert cli("list_vhost_limits", "-p", "limited").stdout == 'Listing limits for vhost "limited" ...\n\n'
    require_failure(cli("clear_vhost_limits", "-p", "limited"), 69, "Error: Parameter does not exist")
    require_failure(cli("clear_vhost_limits", "-p", "nowhere"), 65, "Error: Virtual host 'nowhere' does not exist")
    require_failure(cli("set_vhost_limits", "{}", "-p", "nowhere"), 65, "Error: Virtual host 'nowhere' does not exist")
    require_failure(cli("set_vhost_limits", '{"max-x":1}'), 65, "Error: Validation failed: Unrecognised terms")
    require_failure(cli("set_vhost_limits", "{"), 65, "Error: the definition is not JSON")
    cli("delete_vhost", "limited")


def test_limits_of_users(cli: Cli) -> None:
    cli("add_user", "limited", "secret")
    for asked in ('{"max-channels":5}', '{"max-connections":2}'):
        assert cli("set_user_limits", "limited", asked).stdout == (
            f'Setting user limits to "{asked}" for user "limited" ...\n'
        )
    shown = '{"max-channels":5,"max-connections":2}'
    assert cli("list_user_limits", "limited").stdout == f'Listing limits for user "limited" ...\n{shown}\n'
    assert cli("list_user_limits", "--global", "-s").stdout == f"limited\t{shown}\n"
    assert cli("clear_user_limits", "limited", "max-channels").stdout == (
        'Clearing "max-channels" limit for user "limited" ...\n'
    )
    assert cli("list_user_limits", "limited", "-q").stdout == '{"max-connections":2}\n'
    assert cli("clear_user_limits", "limited", "all").stdout == 'Clearing all limits for user "limited" ...\n'
    assert cli("list_user_limits", "limited", "-q").stdout == "{}\n"
    assert cli("authenticate_user", "limited", "secret").returncode == 0, "the password is kept"
    for command in ("set_user_limits nobody {}", "clear_user_limits nobody all", "list_user_limits nobody"):
        require_failure(cli(*command.split()), 67, 'Error: User "nobody" does not exist')
    require_failure(
        cli("set_user_limits", "limited", '{"max-channels":"x"}'), 65, "Error: max-channels should be a number"
    )
    cli("delete_user", "limited")


def test_parameters(cli: Cli) -> None:
    asked = ("vhost-limits", "limits", '{"max-queues":9}')
    assert cli("set_parameter", *asked).stdout == (
        f'Setting runtime parameter "limits" for component "vhost-limits" to "{asked[2]}" in vhost "/" ...\n'
    )
    assert cli("list_parameters").stdout == (
        'Listing runtime parameters for vhost "/" ...\ncomponent\tname\tvalue\n' + "\t".join(asked) + "\n"
    )
    assert cli("clear_parameter", *asked[:2]).stdout == (
        'Clearing runtime parameter "limits" for component "vhost-limits" on vhost "/" ...\n'
    )
    require_failure(cli("clear_parameter", *asked[:2]), 69, "Error: Parameter does not exist")
    require_failure(
        cli("clear_parameter", *asked[:2], "-p", "nowhere"), 65, "Error: Virtual host 'nowhere' does not exist"
    )
    require_failure(cli("list_parameters", "-p", "nowhere"), 65, "Error: Virtual host 'nowhere' does not exist")
    require_failure(cli("set_parameter", *asked, "-p", "nowhere"), 65, "Error: Virtual host 'nowhere' does not exist")
    require_failure(
        cli("set_parameter", "shovel", "s", "{}"), 65, "Error: Validation failed: component shovel not found"
    )
    require_failure(cli("set_parameter", "shovel", "s", "{"), 65, "Error: the value is not JSON")


def test_global_parameters(cli: Cli) -> None:
    assert cli("set_global_parameter", "tags", '{"a":[1]}').stdout == (
        'Setting global runtime parameter "tags" to "{"a":[1]}" ...\n'
    )
    assert cli("list_global_parameters").stdout == (
        'Listing global runtime parameters ...\nname\tvalue\ntags\t{"a":[1]}\n'
    )
    assert cli("clear_global_parameter", "tags").stdout == 'Clearing global runtime parameter "tags" ...\n'
    require_failure(cli("clear_global_parameter", "tags"), 69, "Error: Parameter does not exist")


def test_what_is_kept_of_a_vhost(cli: Cli) -> None:
    how = ("--description", "a test", "--tags", "a,b", "--default-queue-type", "quorum")
    assert cli("add_vhost", "kept", *how).stdout == 'Adding vhost "kept" ...\n'
    columns = ("list_vhosts", "-s", "name", "description", "tags", "default_queue_type")
    assert cli(*columns).stdout.splitlines()[1] == "kept\ta test\t[a, b]\tquorum"
    assert cli("add_vhost", "kept").returncode == 0
    assert cli(*columns).stdout.splitlines()[1] == "kept\ta test\t[a, b]\tquorum", "one that is there stays as it is"
    assert cli("update_vhost_metadata", "kept", "-d", "another").stdout == 'Updating metadata of vhost "kept" ...\n'
    assert cli("set_vhost_tags", "kept", "c", "d").stdout == 'Setting tags for virtual host "kept" to [c, d] ...\n'
    assert cli(*columns).stdout.splitlines()[1] == "kept\tanother\t[c, d]\tquorum"
    assert "Vhost 'kept' is already running on node '" in cli("restart_vhost", "-p", "kept").stdout
    require_failure(cli("update_vhost_metadata", "kept"), 64, "Error (argument validation): not enough arguments")
    require_failure(
        cli("update_vhost_metadata", "kept", "--default-queue-type", "ring"), 65, "Error (argument validation): Bad"
    )
    for command in (("update_vhost_metadata", "nowhere", "-d", "x"), ("set_vhost_tags", "nowhere")):
        require_failure(cli(*command), 65, "Error: Virtual host 'nowhere' does not exist")
    require_failure(cli("restart_vhost", "-p", "nowhere"), 65, "Error: Virtual host 'nowhere' does not exist")
    cli("delete_vhost", "kept")


def test_definitions_to_a_file_and_from_one(cli: Cli, tmp_path: Path) -> None:
    cli("add_vhost", "moved", "--description", "x")
    file = tmp_path / "definitions.json"
    assert cli("export_definitions", str(file)).stdout == f'Exporting definitions in JSON to a file at "{file}" ...\n'
    exported = json.loads(file.read_text())
    assert [each["name"] for each in exported["vhosts"]] == ["/", "moved"]
    assert json.loads(cli("export_definitions", "-").stdout) == exported
    cli("delete_vhost", "moved")
    assert cli("import_definitions", str(file)).stdout == (
        f'Importing definitions in JSON from a file at "{file}" ...\nSuccessfully imported definitions\n'
    )
    assert json.loads(cli("export_definitions", "-").stdout) == exported
    cli("delete_vhost", "moved")
    assert cli("import_definitions", "-q", stdin=file.read_text()).stdout == ""
    assert json.loads(cli("export_definitions", "-").stdout) == exported
    cli("delete_vhost", "moved")


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "line"),
    [
        (("export_definitions", "/nowhere/x"), "", 65, "Error (argument validation): Bad argument: Directory /nowhere"),
        (
            ("export_definitions", "-", "--format", "erlang"),
            "",
            65,
            "Error (argument validation): Bad argument: Format",
        ),
        (
            ("import_definitions", "/nowhere.json"),
            "",
            65,
            "Error (argument validation): Bad argument: File /nowhere.json",
        ),
        (("import_definitions",), "", 65, "Error: No definitions on standard input"),
        (("import_definitions",), "{", 65, "Error: Failed to deserialise input (format: JSON)"),
        (("import_definitions",), "[1]", 65, "Error: not_json"),
        (
            ("import_definitions",),
            '{"queues":[{"name":"q","vhost":"w"}]}',
            65,
            "Error: queue 'q': Please create virtual",
        ),
    ],
)
def test_definitions_that_are_none(cli: Cli, arguments: tuple[str, ...], stdin: str, code: int, line: str) -> None:
    require_failure(cli(*arguments, stdin=stdin), code, line)


def test_definitions_are_for_administrators(cli: Cli, broker: RunningBroker, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    cli("add_user", "nobody", "secret")
    cli("set_user_tags", "nobody", "policymaker")
    nobody = ("--user", "nobody", "--password-file", str(password))
    require_failure(cli("export_definitions", "-", *nobody), 77, "Error: Not administrator")
    cli("delete_user", "nobody")
