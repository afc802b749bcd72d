"""Each command that prints JSON, run against a broker at work: its output is as the schema says (B-63)."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import httpx2
import pytest

from rewindmq.engine.cli.outputs import OUTPUTS, VERIFIER
from rewindmq.engine.keeping.seals import proof_verifier
from rewindmq.engine.keeping.seals.register import opened
from rewindmq.engine.keeping.seals.seal import fingerprint
from tests.support.commands import Cli
from tests.support.http_clients import publish_to
from tests.support.outputs import judged
from tests.support.registers import ORIGIN, HandWitness, SealKeys, seal, write
from tests.support.running import RunningBroker
from tests.support.tracing import TRACEPARENT, take

pytestmark = pytest.mark.long

POLICY = '{"max-length": 1}'


@dataclass
class World:
    """A broker with a history, an archive of it, and a proof under a register with a witness."""

    cli: Cli
    broker: RunningBroker
    home: Path

    def __call__(self, *arguments: object) -> str:
        """Run a command and return its stdout."""
        done = self.cli(*map(str, arguments))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def message(self) -> str:
        """A message that was dead-lettered."""
        found: str = json.loads(self("find", "--message-id", "m-1", "--format", "json").splitlines()[-1])["message"]
        return found

    def live(self) -> None:
        """Lets messages come, expire, be purged and be taken."""
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "outputs-dead", "x-max-length": 2}
        with httpx2.Client(base_url=f"{self.broker.http_url}/api/queues/%2F/", auth=("guest", "guest")) as api:
            api.put("outputs-dead", json={}).raise_for_status()
            api.put("outputs", json={"arguments": arguments}).raise_for_status()
        for number in range(1, 5):
            headers = {"traceparent": TRACEPARENT, "n": number}
            publish_to(self.broker, "outputs", "order", message_id=f"m-{number}", headers=headers)
        take(self.broker, "outputs", "ack_requeue_false")
        self("purge_queue", "outputs")

    @cached_property
    def proof(self) -> tuple[str, ...]:
        """The arguments that check a proof."""
        data, keys, witness = self.home / "sealed", SealKeys(self.home), HandWitness()
        write(data, range(3))
        register = self.home / "register"
        assert seal(data, keys, "--register", register, "--origin", ORIGIN) == 0
        public = keys.key.public_key()
        with opened(register, None, keys.key, {fingerprint(public): public}) as registrar:
            registrar.add_cosignature(1, witness.cosignature(registrar.note(1), 1_790_000_000))
        proof = self.home / "proof.json"
        proof.write_text(self("prove", "queues-0:1", "--data", data, "--register", register))
        return str(proof), "--public-key", str(keys.public), "--witness", str(witness.key)

    def archive(self) -> str:
        """The archive of the broker's history."""
        url = str(self.home / "archive")
        self("archive", "--to", url, "--data", self.broker.data, "-q")
        return url


def verified(world: World) -> str:
    command = [sys.executable, "-I", proof_verifier.__file__, *world.proof, "--format", "json"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# What each command is given, by its name and the options that choose the output.
CALLS: dict[tuple[str, str], Callable[[World], str]] = {
    ("config", ""): lambda world: world("config", "--keep-bodies", "30d", "--format", "json"),
    ("find", ""): lambda world: world("find", "--body", "order", "--format", "json"),
    ("history", ""): lambda world: world("history", "outputs", "--format", "json"),
    ("biography", ""): lambda world: world("biography", world.message(), "--format", "json"),
    ("diff", ""): lambda world: world("diff", "outputs-dead", "--from", "1h", "--format", "json"),
    ("diff", "--summary"): lambda world: world("diff", "outputs-dead", "--from", "1h", "--summary", "--format", "json"),
    ("what_if", ""): lambda world: world("what_if", "outputs-dead", "--policy", POLICY, "--format", "json"),
    ("spans", ""): lambda world: world("spans", "outputs", "--since", "1h"),
    ("events", ""): lambda world: world("events", "--data", world.broker.data, "--effects", "--format", "json"),
    ("check_proof", ""): lambda world: world("check_proof", *world.proof, "--format", "json"),
    ("archive_status", ""): lambda world: world(
        "archive_status", "--archive", world.archive(), "--data", world.broker.data, "--format", "json"
    ),
    ("export_definitions", ""): lambda world: world("export_definitions", "-", "--format", "json"),
    (VERIFIER, ""): verified,
}
BY_CALL = {(command, each.when): each for command, outputs in OUTPUTS.items() for each in outputs}


@pytest.fixture
def world(cli: Cli, broker: RunningBroker, tmp_path: Path) -> World:
    found = World(cli, broker, tmp_path)
    found.live()
    return found


def test_b63_every_command_prints_what_its_schema_says(world: World) -> None:
    assert CALLS.keys() == BY_CALL.keys()
    shown = {call: judged(BY_CALL[call], print_it(world)) for call, print_it in CALLS.items()}
    assert {each["outcome"] for each in shown["biography", ""]} >= {"published", "dead_lettered"}
    assert any(each["origin"] for each in shown["biography", ""])
    assert shown["check_proof", ""][0]["register"]["witnesses"]
    assert shown["what_if", ""][0]["rows"]
