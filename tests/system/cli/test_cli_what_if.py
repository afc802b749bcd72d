"""`rewindmq what_if`: what would this policy have done? (B-34)."""

import json

import pytest

from tests.support.commands import Cli, require_failure
from tests.support.http_clients import publish_to, put_queue
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


def test_b34_a_policy_is_tried_at_the_command_line(cli: Cli, broker: RunningBroker) -> None:
    put_queue(broker, "trying")
    for text in ("one", "two", "three"):
        publish_to(broker, "trying", text)
    tried = cli("what_if", "trying", "--policy", '{"max-length": 1}')
    assert (tried.returncode, tried.stderr) == (0, "")
    lines = tried.stdout.splitlines()
    assert lines[0] == "Queue 'trying' of vhost '/', as recorded and as it would have been ..."
    assert lines[1].split("\t") == ["outcome", "rule", "before", "after"]
    assert "maxlen\tpolicy what-if.max-length\t0\t2" in lines
    assert "(greatest depth)\t\t3\t1" in lines
    assert "ready\t\tmaxlen\tpolicy what-if.max-length\t2" in lines
    assert any(line.startswith("- Consumers act as they did in fact") for line in lines)
    for option in (("--formatter", "json"), ("--format", "json")):
        answer = cli("what_if", "trying", "--operator-policy", '{"max-length": 1}', *option, "--from", "-1h", "-q")
        found = json.loads(answer.stdout)
        assert (found["complete"], found["after"]["depth"], len(found["rows"])) == (True, 1, 2)


def test_b34_trials_that_make_no_sense_end_with_one_line(cli: Cli, broker: RunningBroker) -> None:
    put_queue(broker, "trying")
    require_failure(cli("what_if", "trying"), 64, "Error: say what to try: --policy or --operator-policy")
    require_failure(cli("what_if", "trying", "--policy", "{"), 65, "Error: ")
    require_failure(cli("what_if", "trying", "--policy", "[]"), 65, "Error: the definition is not a JSON object")
    require_failure(cli("what_if", "trying", "--policy", "{}", "--from", "noon"), 64, "Error: 'noon' is not a time")
    require_failure(
        cli("what_if", "never", "--policy", "{}"), 65, "Error: no queue 'never' in vhost '/' between these moments"
    )
    unknown = cli("what_if", "trying", "--policy", '{"max-lenght": 1}')
    assert (unknown.returncode, "are not recognised policy settings" in unknown.stderr) == (65, True)
