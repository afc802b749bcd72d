"""The next version of the product: a copy of the source tree with a few edits, as docs/development says to make one.

    program = NextVersion.made(directory)          edits that no longer fit raise StaleEdit, with the file and the text
    program.broker                                 a class of `RunningBroker`s that run it
    program.run("-m", "rewindmq", "verify", ...)   any other command of it
    know_next(monkeypatch)                         without a copy: this program with today's rules under the next number

The edits are the worked example of docs/development/make-a-machine-version.md: one changed rule (a purge renews a
queue's lease), one field more in an event (`Purged.note`) and one in what RocksDB stores of messages
(`Encryption.cipher`), one more in the stored state of a queue (how often it was purged), and something new for users
that needs the version (the note of a purge).
"""

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pika
import pytest

from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.schemas.registry import envelope_fingerprint
from tests.support.running import ROOT, RunningBroker

NEXT = MACHINE_VERSION + 1
# The modules that ask what the newest version is.
KNOWING = (
    "engine.upgrades.finalize",
    "engine.cluster.node",
    "engine.cluster.start",
    "engine.embedded.lifecycle",
    "engine.embedded.start",
    "projections.machine.machine",
    "projections.machine.serialization.load",
    "projections.topology.topology",
)
PERSISTENT = pika.BasicProperties(delivery_mode=2)
PARTS = ("rewindmq", "engine", "projections", "schemas", "spark_replay", "pyspark_rewindmq.py")
# In the text of an edit: the fingerprint of the next version's schema.
FINGERPRINT = "@FINGERPRINT@"


class StaleEdit(Exception):
    """The text that an edit replaces does not stand exactly once in the file."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Text of a file, which stands there once, and what comes in its place."""

    file: str
    old: str
    new: str

    def apply(self, root: Path, fingerprint: str = "") -> None:
        """Edit the file below `root`. Raises StaleEdit."""
        path = root / self.file
        text = path.read_text("utf-8")
        if text.count(self.old) != 1:
            raise StaleEdit(f"{self.file} has this {text.count(self.old)} times, and not once: {self.old!r}")
        path.write_text(text.replace(self.old, self.new.replace(FINGERPRINT, fingerprint)), "utf-8")


# 1. Two records have a field more. Then the schema is released, which says its fingerprint.
SCHEMA = (
    Edit(
        "schemas/avsc/Purged.avsc",
        """{"name": "queue", "type": "string", "doc": "Name of the queue."}\n""",
        """{"name": "queue", "type": "string", "doc": "Name of the queue."},\n"""
        """    {"name": "note", "type": "string", "default": "", "doc": "A note in the operator's words."}\n""",
    ),
    Edit(
        "schemas/events.py",
        '''all ready messages are dropped."""

    vhost: str
    queue: str
''',
        '''all ready messages are dropped."""

    vhost: str
    queue: str
    note: str = ""
''',
    ),
    Edit(
        "schemas/avsc/Encryption.avsc",
        """Length limits count this size."}\n""",
        """Length limits count this size."},\n"""
        """    {"name": "cipher", "type": "string", "default": "AES-256-GCM", "doc": "Name of the cipher."}\n""",
    ),
    Edit("schemas/values.py", "    plain_size: int\n", '    plain_size: int\n    cipher: str = "AES-256-GCM"\n'),
    Edit(
        "schemas/codec.py",
        'return b"\\x02" + sealed + _long(value.plain_size)\n',
        'return b"\\x02" + sealed + _long(value.plain_size) + _text(value.cipher)\n',
    ),
)
# 2. The machine version, with its schema.
VERSION = (
    Edit(
        "projections/machine/rules/versions.py",
        f"MACHINE_VERSION = {MACHINE_VERSION}",
        f"MACHINE_VERSION = {NEXT}",
    ),
    Edit(
        "projections/machine/rules/versions.py",
        f'{MACHINE_VERSION}: "{envelope_fingerprint()}"}}',
        f'{MACHINE_VERSION}: "{envelope_fingerprint()}", {NEXT}: "{FINGERPRINT}"}}',
    ),
)
# 3. The rule, and what the state keeps by it.
RULE = (
    Edit(
        "projections/machine/events/queues.py",
        "    _forget_ready(queue, PURGED, effects)\n    enforce",
        f"""    if state.machine_version >= {NEXT}:
        queue.purges += 1
        renew_lease(state, queue)
    _forget_ready(queue, PURGED, effects)
    enforce""",
    ),
    Edit(
        "projections/machine/data/queue.py",
        "        self.last_used_ms = 0  #",
        "        self.purges = 0\n        self.last_used_ms = 0  #",
    ),
    Edit(
        "projections/machine/serialization/pack.py",
        """    if queue.paused:
        fields["paused"] = True
""",
        """    if queue.paused:
        fields["paused"] = True
    if queue.purges:
        fields["purges"] = queue.purges
""",
    ),
    Edit(
        "projections/machine/serialization/load.py",
        """    queue.last_used_ms = fields["last_used_ms"]
""",
        """    queue.last_used_ms = fields["last_used_ms"]
    queue.purges = fields.get("purges", 0)
""",
    ),
)
# 4. What is new for users, and refused before the upgrade is finalized.
OFFER = (
    Edit(
        "engine/upgrades/since_version.py",
        "SINCE_VERSION: Final[dict[str, int]] = {",
        f'SINCE_VERSION: Final[dict[str, int]] = {{"the note of a purge": {NEXT}, ',
    ),
    Edit(
        "engine/broker/queues.py",
        "from rewindmq.engine.errors import",
        "from rewindmq.engine.upgrades.since_version import require\nfrom rewindmq.engine.errors import",
    ),
    Edit(
        "engine/broker/queues.py",
        "    async def purge(self, session: Session, name: str) -> int:",
        '    async def purge(self, session: Session, name: str, note: str = "") -> int:',
    ),
    Edit(
        "engine/broker/queues.py",
        "        effects = await self._sessions.ask(session, partition, Purged(session.vhost, name))",
        """        if note:
            require("the note of a purge", partition.machine.machine_version)
        effects = await self._sessions.ask(session, partition, Purged(session.vhost, name, note))""",
    ),
    Edit(
        "engine/http/resources/queues.py",
        "        purged = await call.broker.queues.purge(session, queue.name)",
        """        note = call.request.query_params.get("note", "")
        purged = await call.broker.queues.purge(session, queue.name, note)""",
    ),
)


def know_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this program know the next version, with today's rules and schema."""
    for module in KNOWING:
        monkeypatch.setattr(f"rewindmq.{module}.MACHINE_VERSION", NEXT)


class NextVersion:
    """The copy in `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {**os.environ, "REWINDMQ_PURE": "1"}

        class NextBroker(RunningBroker):
            program_root = root

        self.broker: type[RunningBroker] = NextBroker

    @classmethod
    def made(cls, root: Path) -> "NextVersion":
        """Copy the source tree to `root`, which does not exist yet, and edit it. Raises StaleEdit."""
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        root.mkdir(parents=True)
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, root / part, symlinks=True, ignore=ignored)
            else:
                shutil.copy(ROOT / part, root / part)
        program = cls(root)
        for edit in SCHEMA:
            edit.apply(root)
        released = program.run("-m", "rewindmq.schemas.registry")
        assert released.returncode == 0, released.stderr
        for edit in (*VERSION, *RULE, *OFFER):
            edit.apply(root, Path(released.stdout.strip()).stem)
        return program

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run Python with these arguments in the copy, to its end."""
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=600, check=False
        )


def finalize_under_load(program: NextVersion, at: RunningBroker, load: RunningBroker) -> None:
    """Finalize the upgrade at a broker while a client of `load` publishes and takes, in order and without a gap."""
    ended = threading.Event()
    taken: list[int] = []
    failures: list[BaseException] = []

    def live() -> None:
        try:
            with pika.BlockingConnection(pika.URLParameters(load.amqp_url)) as connection:
                channel = connection.channel()
                channel.queue_declare("load", durable=True)
                channel.confirm_delivery()
                number = 0
                while not ended.is_set():
                    channel.basic_publish("", "load", b"%d" % number, PERSISTENT, mandatory=True)
                    if number % 2:
                        taken.append(int(channel.basic_get("load", auto_ack=True)[2]))
                    number += 1
        except BaseException as error:
            failures.append(error)

    client = threading.Thread(target=live)
    client.start()
    for followed in (f"now, and followed {MACHINE_VERSION}", "already: nothing to do"):
        before = len(taken)
        while len(taken) < before + 50 and client.is_alive():
            ended.wait(0.05)
        done = program.run("-m", "rewindmq", "--url", at.http_url, "finalize_upgrade")
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(f"the history follows machine version {NEXT} {followed}\n"), done.stdout
    ended.set()
    client.join()
    assert not failures, failures
    assert taken == list(range(len(taken)))
