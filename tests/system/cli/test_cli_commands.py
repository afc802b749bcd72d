"""Commands that change things: what they print, and their exit codes, as rabbitmqctl's
(docs/behaviours/interfaces.md#command-line). Deliberately
different: an error is one line, and a bad definition or pattern is 65 (data), where rabbitmqctl says 69."""

import time
from pathlib import Path

import pytest

import rewindmq
from tests.support.commands import Cli, require_failure
from tests.support.forked import run
from tests.support.http_clients import put_queue
from tests.support.ports import free_port
from tests.support.running import RunningBroker


def test_policies_are_set_listed_and_cleared_s014_s017(cli: Cli) -> None:
    done = cli("set_policy", "my-pol", "^one-meg$", '{"max-length-bytes":1048576}', "--apply-to", "queues")
    assert (done.returncode, done.stderr) == (0, "")
    definition = '{"max-length":2,"overflow":"reject-publish"}'
    assert (
        cli("set_policy", "-q", "two", "^two-messages$", definition, "--apply-to", "queues", "--priority", "3").stdout
        == ""
    )
    assert cli("list_policies").stdout == (
        'Listing policies for vhost "/" ...\nvhost\tname\tpattern\tapply-to\tdefinition\tpriority\n'
        '/\tmy-pol\t^one-meg$\tqueues\t{"max-length-bytes":1048576}\t0\n'
        f"/\ttwo\t^two-messages$\tqueues\t{definition}\t3\n"
    )
    assert cli("clear_policy", "my-pol").stdout == 'Clearing policy "my-pol" on vhost "/" ...\n'
    assert cli("clear_policy", "two").returncode == 0
    require_failure(cli("clear_policy", "two"), 69, "Error: Parameter does not exist")


def test_operator_policies(cli: Cli) -> None:
    done = cli("set_operator_policy", "op", "^x", '{"max-length":5}', "--apply-to", "queues")
    assert done.stdout.startswith('Setting operator policy override "op" for pattern "^x" to')
    assert cli("list_operator_policies", "-q").stdout.splitlines()[1] == '/\top\t^x\tqueues\t{"max-length":5}\t0'
    assert cli("clear_operator_policy", "op").stdout == 'Clearing operator policy "op" on vhost "/" ...\n'
    require_failure(cli("clear_operator_policy", "op"), 69, "Error: Parameter does not exist")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("a", "x", "{bad"), 65, "Error: the definition is not JSON ("),
        (("a", "x", "[1]"), 65, "Error: the definition is not a JSON object"),
        (("a", "x", "{}"), 65, "Error: Validation failed: no policy provided"),
        (("a", "(", '{"max-length":1}'), 65, "Error: Validation failed: pattern should be regular expression"),
        (
            ("a", "x", '{"nokey":1}'),
            65,
            'Error: Validation failed: [{<<"nokey">>,1}] are not recognised policy settings',
        ),
        (("a", "x", '{"max-length":-1}'), 65, "Error: Validation failed: -1 is not a valid maximum length"),
        (("a", "x", '{"overflow":"foo"}'), 65, 'Error: Validation failed: <<"foo">> is not a valid overflow value'),
        (("a", "x", '{"max-length":1}', "--apply-to", "bogus"), 65, "Error: Validation failed: apply-to 'bogus'"),
        (("a", "x", '{"max-length":1}', "-p", "nowhere"), 65, "Error: Virtual host 'nowhere' does not exist"),
        (("a", "x", '{"max-length":1}', "--priority", "zz"), 64, "Error (argument validation): Invalid value for"),
        (("a", "x", '{"max-length":1}', "--bogus"), 64, "Error (argument validation): No such option"),
        (("a", "x"), 64, "Error (argument validation): Missing argument 'DEFINITION'"),
        (("a", "x", "{}", "more"), 64, "Error (argument validation): Got unexpected extra argument"),
    ],
)
def test_a_bad_policy_is_refused_in_one_line(cli: Cli, arguments: tuple[str, ...], code: int, line: str) -> None:
    require_failure(cli("set_policy", *arguments), code, line)
    assert cli("list_policies", "-s").stdout.strip() == ""


def test_unknown_columns_commands_and_formatters_are_usage_errors(cli: Cli) -> None:
    require_failure(
        cli("list_queues", "name", "nonsense"),
        64,
        "Error (argument validation): Info key(s) nonsense are not supported",
    )
    require_failure(cli("nonsense"), 64, "Error (argument validation): No such command 'nonsense'")
    require_failure(
        cli("list_queues", "--formatter", "foo"), 64, "Error (argument validation): Invalid value for '--formatter'"
    )
    require_failure(cli("list_queues", "-t", "abc"), 64, "Error (argument validation): Invalid value for '-t'")
    assert cli().returncode == 64


def test_purge_and_delete_a_queue(cli: Cli, broker: RunningBroker) -> None:
    put_queue(broker, "q", messages=3)
    assert cli("list_queues", "-s").stdout == "q\t3\n"
    require_failure(cli("delete_queue", "q", "--if-empty"), 64, "Error: Queue is not empty")
    assert cli("purge_queue", "q").stdout == "Purging queue 'q' in vhost '/' ...\n"
    assert cli("list_queues", "-s").stdout == "q\t0\n"
    put_queue(broker, "q", messages=2)
    assert cli("delete_queue", "q").stdout == (
        "Deleting queue 'q' on vhost '/' ...\nQueue was successfully deleted with 2 ready messages\n"
    )
    require_failure(cli("delete_queue", "q"), 64, "Error: Queue not found")
    require_failure(cli("purge_queue", "q"), 69, "Error: Queue not found")
    require_failure(
        cli("delete_queue", ""), 65, "Error (argument validation): Bad argument: queue name cannot be an empty string"
    )


def test_users_their_passwords_and_tags(cli: Cli, tmp_path: Path) -> None:
    assert cli("add_user", "alice", "secret").stdout.startswith('Adding user "alice" ...\nDone. Don\'t forget to grant')
    require_failure(cli("add_user", "alice", "secret"), 70, 'Error: User "alice" already exists')
    require_failure(cli("add_user", "bob"), 65, "Error: Password is not provided via argument or stdin")
    assert cli("add_user", "bob", stdin="hidden\n").returncode == 0
    assert cli("authenticate_user", "bob", "hidden").stdout == 'Authenticating user "bob" ...\nSuccess\n'
    require_failure(
        cli("authenticate_user", "bob", "wrong"), 65, 'Error: failed to authenticate user "bob": invalid credentials'
    )
    assert cli("set_user_tags", "alice", "management", "monitoring").stdout == (
        'Setting tags for user "alice" to [management, monitoring] ...\n'
    )
    assert cli("list_users").stdout == (
        "Listing users ...\nuser\ttags\nalice\t[management, monitoring]\nbob\t[]\nguest\t[administrator]\n"
    )
    assert cli("change_password", "alice", "other").returncode == 0
    assert cli("authenticate_user", "alice", "other").returncode == 0
    assert cli("list_users", "-s").stdout.splitlines()[0] == "alice\t[management, monitoring]"
    password = tmp_path / "password"
    password.write_text("other\n")
    alice = ("--user", "alice", "--password-file", str(password))
    require_failure(cli("list_users", *alice), 77, "Error: Not administrator user")
    for user in ("alice", "bob"):
        assert cli("delete_user", user).stdout == f'Deleting user "{user}" ...\n'
    require_failure(cli("delete_user", "alice"), 67, 'Error: User "alice" does not exist')
    require_failure(cli("change_password", "alice", "x"), 67, 'Error: User "alice" does not exist')
    require_failure(cli("set_user_tags", "alice"), 67, 'Error: User "alice" does not exist')


def test_vhosts_and_permissions(cli: Cli) -> None:
    assert cli("add_vhost", "v2").returncode == cli("add_vhost", "v2").returncode == 0
    assert cli("set_permissions", "-p", "v2", "guest", "^a", "^b", "^c").stdout == (
        'Setting permissions for user "guest" in vhost "v2" ...\n'
    )
    assert cli("list_permissions", "-p", "v2").stdout == (
        'Listing permissions for vhost "v2" ...\nuser\tconfigure\twrite\tread\nguest\t^a\t^b\t^c\n'
    )
    assert cli("list_user_permissions", "guest", "-q").stdout == (
        "vhost\tconfigure\twrite\tread\n/\t.*\t.*\t.*\nv2\t^a\t^b\t^c\n"
    )
    require_failure(cli("set_permissions", "nobody", ".*", ".*", ".*"), 67, 'Error: User "nobody" does not exist')
    require_failure(
        cli("set_permissions", "-p", "v3", "guest", ".*", ".*", ".*"), 65, "Error: Virtual host 'v3' does not exist"
    )
    require_failure(cli("set_permissions", "guest", "(", ".*", ".*"), 65, "Error: invalid regular expression '('")
    assert cli("clear_permissions", "-p", "v2", "guest").returncode == 0
    assert cli("list_permissions", "-p", "v2", "-s").stdout == ""
    require_failure(cli("list_permissions", "-p", "v3"), 65, "Error: Virtual host 'v3' does not exist")
    assert cli("delete_vhost", "v2").returncode == 0
    require_failure(cli("delete_vhost", "v2"), 65, "Error: Virtual host 'v2' does not exist")


def test_ping_status_version_help(cli: Cli, broker: RunningBroker) -> None:
    assert cli("ping", "-q").stdout == "Ping succeeded\n"
    status = cli("status").stdout
    assert status.startswith("Status of node rewindmq@localhost ...\nRuntime\n\n")
    assert f"OS PID: {broker.process.pid}\n" in status
    assert f"port: {broker.amqp_port}, protocol: amqp" in status
    assert cli("status", "--formatter=json").stdout.startswith('[\n{"pid":')
    assert cli("version").stdout == f"{rewindmq.__version__}\n"
    assert cli("help", "set_policy").stdout.startswith("Usage: rewindmq set_policy [OPTIONS] NAME PATTERN DEFINITION")


def test_no_broker_a_wrong_address_a_wrong_password(broker: RunningBroker) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    require_failure(run("ping", "-q", REWINDMQ_URL=nobody), 69, f"Error: unable to connect to {nobody}: ")
    require_failure(
        run("ping", "-q", "--url", "ftp://x"), 64, "Error: 'ftp://x' is not the address of a management API"
    )
    require_failure(
        run("ping", "-q", "--url", nobody, "--http-port", "1"), 64, "Error: give either --url or --http-port"
    )
    port = str(broker.http_port)
    require_failure(run("ping", "-q", "--http-port", port, REWINDMQ_PASSWORD="wrong"), 65, "Error: login failed at ")
    assert run("ping", "-q", "--http-port", port).returncode == 0
    assert run("ping", "-q", "--url", broker.http_url.replace("//", "//guest:guest@")).returncode == 0


def test_a_broker_that_does_not_answer_in_time(broker: RunningBroker) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        done = run("list_queues", "-q", "-t", "0.2", "--http-port", str(silent.getsockname()[1]))
        assert time.monotonic() - started < 30
    require_failure(done, 75, "Error: operation on http://127.0.0.1:")
