"""A history of years in one seed: it is archived, cut here, trimmed, its bodies expire, and it is recovered.

Each program is killed at a step that the seed draws.

    python -m tests.simulation.years 0 5000            seeds 0 to 4999; the first that fails ends the run, and is named
    python -m tests.simulation.years 0 100 DEFECT      with a defect of PLANTED, which must be found

Each program runs in a forked process, which ends before its n-th change of a file, as `kill -9` ends it. The archive is
a directory, so a change of an object is such a step too. At other times the store is away, or its answer is lost.

What must hold after each program, told by a judge that knows all that was confirmed:

- The data directory and the archive together have every record from the floor on, and the state that follows from them.
  A floor is one that HistoryTrimmed names, and no later one than an operator asked for.
- The archive alone has its part, proven.
- Each message that is queued has its record, and its body can be decrypted.

At the end all programs run once more without faults. Then a directory is recovered from the archive, with the keys of
the former one, and has all that was confirmed.
"""

import gc
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from rewindmq.engine.erasure.encryption import Subjects, day_at
from rewindmq.engine.erasure.key_copies import copy_keys, keys_of
from rewindmq.engine.erasure.key_store import NOBODY, KeyStore, day_of
from rewindmq.engine.keeping import in_directory, local_space
from rewindmq.engine.keeping import trim as trims
from rewindmq.engine.keeping.archive import archiver as archivers
from rewindmq.engine.keeping.archive import trims as archive_trims
from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.identity import read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.recovery import NotYetArchived, recover
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.tiers import TieredLogReader, floors_of
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimRequest
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.embedded.cut import cut
from rewindmq.engine.log.embedded.log import EmbeddedLog, EmbeddedPartition
from rewindmq.projections import system_calls
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.replay import PartitionLog, fold
from rewindmq.projections.rewind import nearest
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import MachineUpgraded, Published, Purged, SessionClosed
from rewindmq.schemas.values import BROKER, Route
from tests.simulation import archive_store
from tests.simulation.archive_store import FaultyStore
from tests.support.records import SCHEMA_BYTES, fill
from tests.support.traffic import ANN, QUEUES, START_MS, Traffic, live_messages

DAY_MS = 86_400_000
SEGMENT_BYTES = SCHEMA_BYTES + 2_000
KEPT_DAYS = 2  # of bodies
STEPS = {"archive": 60, "keep_local": 15, "trim": 25, "expire": 4, "recover": 60}  # a kill comes before one of so many
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KILLED, REFUSED, FOUND = 137, 3, 4  # how a process ends
OF_ARCHIVE = ("archive", "keep_local", "trim")  # programs that write to the archive
_NOT_YET = ("there is no archive", "not the archive of the history in", "is archived yet")  # it was not begun
_SOME = ("away", "unheard")  # faults of the store; kills come from elsewhere, and other tests have damage


class Encrypting(Traffic):
    """Traffic whose bodies are encrypted under a key of their day."""

    subjects: Subjects

    def _publish(self) -> Published:
        names = self.random.sample(sorted(QUEUES), self.random.choice((1, 1, 1, 2, 3)))
        body = b"body %d" % self.log.next_offset + bytes(self.random.choice((0, 10, 300)))
        sealed, encryption = self.subjects.encrypt(NOBODY, body)
        expiration = self.random.choice((None, None, None, 0, 15))
        route = Route("/", "", "key", tuple(sorted(names)))
        return Published(
            route,
            b"\x10\x00\x02",
            expiration_ms=expiration,
            persistent=True,
            encryption=encryption,
            body=sealed,
            body_size=len(body),
        )


def empty_queues(traffic: Traffic) -> None:
    """Let no queue hold anything."""
    traffic.append(ANN, SessionClosed(ANN.session, 0))
    for _ in range(2):
        for name in sorted(QUEUES):
            traffic.append(ANN, Purged("/", name))
        while any(queue.outbox for queue in traffic.machine.by_id.values()):
            traffic.append(BROKER, traffic._forwarded())
    traffic.end_turn()


class Years:
    """The history of a seed, in a directory of its own. This process asks no store: each program is a child."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.directory = directory
        self.data = directory / "data"
        self.url = str(directory / "archive")
        self.chance = Random(seed)
        self.now_ms = START_MS
        self.records: list[bytes] = []  # all that was confirmed of queues-0
        self.machine = Machine("queues-0")
        self.asked = 0  # the last floor that an operator has allowed
        self.met: set[str] = set()
        (directory / "archive").mkdir(parents=True)

    # -- the history -----------------------------------------------------------------------------------------------

    def run(self) -> set[str]:
        """Returns which programs were killed, refused or done."""
        self.work()
        programs = {
            "archive": self.archive,
            "keep_local": self.keep_local,
            "trim": self.trim,
            "expire": self.expire,
            "recover": self.recover,
        }
        for _ in range(self.chance.randint(4, 8)):
            if self.chance.random() < 0.4:
                self.work()
            else:
                name = self.chance.choice(("archive", *programs))
                programs[name](self.chance.randint(1, STEPS[name]))
                self.judge(name, self.check if name in OF_ARCHIVE else self.check_data)
        self.child("the end", 0, self._all, self.allow(), self.keys_due())
        self.judge("the end", self.finish)
        return self.met

    def _all(self, store: Objects, before_ms: int, key_ids: list[str]) -> None:
        self._archive(store, True)
        self._keep_local(store, 1)
        self._trim(store, before_ms)
        self._expire(store, key_ids)
        self._archive(store, True)

    def work(self) -> None:
        """A broker at work for some hours or days."""
        self.now_ms += self.chance.choice((DAY_MS // 4, DAY_MS, 2 * DAY_MS))
        keys = KeyStore(self.data / "keys")
        keys.current(NOBODY, day_at(self.now_ms))
        log = EmbeddedLog.open(self.data, 1, SEGMENT_BYTES)
        if not self.records:
            fill(log.metadata, range(3))
            self.upgrade(log.queues[0])
        traffic = Encrypting.__new__(Encrypting)
        traffic.subjects = Subjects("", keys, {}, lambda: self.now_ms)
        traffic.__init__(self.chance.randrange(1 << 30), self.machine, None, self.now_ms, log.queues[0])  # type: ignore[misc]
        if self.chance.random() < 0.5:
            empty_queues(traffic)
        for _ in range(self.chance.randint(1, 3)):
            traffic.run(15)
            log.commit_and_wait()
        log.close()
        self.now_ms = traffic.now_ms
        reader = TieredLogReader(self.data).queues[0].local
        for block in reader.read(len(self.records)):
            self.records += block.records[len(self.records) - block.first_offset :]

    def upgrade(self, log: EmbeddedPartition) -> None:
        """The traffic is written under today's schema, which only the history of today's machine version has."""
        encoder, upgraded = Encoder(), MachineUpgraded(MACHINE_VERSION)
        offset = log.append(self.now_ms, encoder.encode(encoder.prefix(self.now_ms, BROKER), upgraded))
        self.machine.apply(offset, self.now_ms, BROKER, upgraded, [])

    # -- the programs ----------------------------------------------------------------------------------------------

    def archive(self, step: int) -> None:
        closes = step == 0 or self.chance.random() < 0.5
        self.child("archive", step, self._archive, closes)

    def _archive(self, store: Objects, closes: bool) -> None:
        if closes:
            archivers.close_segments(self.data)
        archivers.Archiver(store, self.data).run()
        note_archive(self.data, store.url)

    def keep_local(self, step: int) -> None:
        self.child("keep_local", step, self._keep_local, self.chance.choice((1, 200_000)))

    def _keep_local(self, store: Objects, size: int) -> None:
        with patch.object(local_space, "RECORD_BYTES", 1):
            local_space.keep_local(self.data, store, local_space.SpaceLimits(size_bytes=size))

    def trim(self, step: int) -> None:
        self.child("trim", step, self._trim, self.allow())

    def allow(self) -> int:
        """The time before which an operator allows history to go."""
        allowed = self.chance.randint(0, len(self.records) * 2 // 3)
        self.asked = max(self.asked, allowed)
        return Decoder().timestamp_ms(self.records[allowed])

    def _trim(self, store: Objects, before_ms: int) -> None:
        with patch.object(in_directory, "open_objects", lambda url: store):
            wanted = TrimRequest(before_ms=before_ms, reason="a test", accept_findings=True)
            trim_directory(self.data, wanted, wall_ms=self.now_ms)

    def expire(self, step: int) -> None:
        self.child("expire", step, self._expire, self.keys_due())

    def keys_due(self) -> list[str]:
        """The keys of days that are over and that no queue holds."""
        oldest = day_at(self.now_ms - KEPT_DAYS * DAY_MS)
        held = self.days_held()
        due = {day: ids for day, ids in KeyStore(self.data / "keys").of_days().items() if day < oldest}
        return [each for day in sorted(due.keys() - held) for each in due[day]]

    def days_held(self) -> set[str]:
        """The days of the messages that are queued."""
        decoder = Decoder()
        found = set()
        for _, message_id in live_messages(self.machine):
            event = decoder.decode(self.records[message_id])[2]
            assert isinstance(event, Published)
            assert event.encryption is not None
            found.add(str(day_of(event.encryption.key_id)))
        return found

    def _expire(self, store: Objects, key_ids: list[str]) -> None:
        keys = KeyStore(self.data / "keys")
        for key_id in key_ids:
            keys.destroy(key_id)

    def recover(self, step: int) -> None:
        """Begin a recovery, which may be killed, and end it. The result is looked at."""
        self.child("recover", step, self._recover)
        self.judge("recover", lambda objects: self.recovered(objects, self.directory / "recovered"))
        shutil.rmtree(self.directory / "recovered", ignore_errors=True)

    def _recover(self, store: Objects) -> None:
        target = self.directory / "recovered"
        recover(store, target)
        copy_keys(keys_of(target), KeyStore(self.data / "keys"), KeyStore(target / "keys"))

    # -- processes -------------------------------------------------------------------------------------------------

    def child(self, name: str, step: int, program: Callable[..., None], *arguments: Any) -> None:
        """Run a program in a process of its own. `step`: it ends before this change of a file; 0: all is well."""
        seed = self.chance.randrange(1 << 30)

        def run(objects: Objects) -> None:
            chance = Random(seed)
            rate = chance.choice((0, 0, 0.03)) if step else 0
            with patch.multiple(archive_store, OF_UPLOADS=_SOME, OF_RANGES=_SOME, OF_ANY=_SOME):
                store = FaultyStore(objects, chance, {"": rate}, set(), lambda: None)
                if step:
                    die_before(step, str(self.directory))
                program(store, *arguments)

        status, text = forked(lambda: run(open_objects(self.url)))
        assert status != FOUND, f"seed {self.seed}: {name}: {text}"
        assert step or status == 0, f"seed {self.seed}: {name} without a fault: {text}"
        self.met.add(f"{name} {'killed' if status == KILLED else 'refused' if status == REFUSED else 'done'}")

    def judge(self, when: str, check: Callable[[Objects], object]) -> None:
        status, text = forked(lambda: check(open_objects(self.url)))
        assert status == 0, f"seed {self.seed}: {when}: {text}"

    # -- the judge, in a process of its own ------------------------------------------------------------------------

    def check_data(self, objects: Objects) -> int:
        """The data directory and the archive together have all. Returns the floor."""
        EmbeddedLog.open(self.data, 1, SEGMENT_BYTES).close()  # a start ends the cuts that were begun
        log = TieredLogReader(self.data).queues[0]
        floors = floors_of(self.data)
        floor = floors["queues-0"].event.offset if floors else 0
        assert floor <= self.asked, f"the floor is {floor}, and nobody asked for more than {self.asked}"
        assert log.start_offset <= floor, f"it begins at {log.start_offset}, and the floor is {floor}"
        self.require_history(log, len(self.records))
        self.require_bodies(log, self.machine, KeyStore(self.data / "keys"))
        return floor

    def check(self, objects: Objects) -> None:
        """Both together have all, and the archive alone has its part, proven."""
        floor = self.check_data(objects)
        if read_identity(objects) is None:
            return
        for name in ("metadata-0", "queues-0"):
            wrong = [str(error) for _, error in archivers.verify(objects, name) if error is not None]
            assert wrong == [], wrong
        archived = ArchivedLog(self.url).queues[0]
        assert archived.start_offset <= floor, f"the archive begins at {archived.start_offset}: the floor is {floor}"
        if archived.next_offset > 0:
            self.require_history(archived, archived.next_offset)

    def require_history(self, log: PartitionLog, end: int) -> Machine:
        """Each record up to `end` is the one that was confirmed, and they lead to the state that followed."""
        start = log.start_offset
        assert log.next_offset == end, f"it ends at {log.next_offset}, and {end} were confirmed"
        found = [record for block in log.read(start) for record in block.records[max(0, start - block.first_offset) :]]
        assert found == self.records[start:end], f"offsets {start} to {end} are not those that were confirmed"
        machine = nearest(log, None, end)
        fold(machine, log, end)
        wanted = self.state(end)
        assert machine.digest() == wanted.digest(), f"the state at {end} is another one"
        return machine

    def state(self, end: int) -> Machine:
        """The state that follows from all that was confirmed up to there."""
        if end == len(self.records):
            return self.machine
        machine = Machine("queues-0")
        decoder, effects = Decoder(), []  # type: ignore[var-annotated]
        for offset, record in enumerate(self.records[:end]):
            timestamp_ms, actor, event = decoder.decode(record)
            machine.apply(offset, timestamp_ms, actor, event, effects)
        return machine

    def require_bodies(self, log: PartitionLog, machine: Machine, keys: KeyStore) -> None:
        """Each queued message has its record, where it is older than the log in the base, and its body."""
        decoder, subjects = Decoder(), Subjects("", keys, {}, lambda: self.now_ms)
        base, start = log.base(), log.start_offset
        for message_id in sorted({message_id for _, message_id in live_messages(machine)}):
            if message_id < start:
                kept = None if base is None else base.record(message_id)
                assert kept == self.records[message_id], f"the record of the queued message {message_id} is lost"
            event = decoder.decode(self.records[message_id])[2]
            assert isinstance(event, Published)
            body = subjects.decrypt(event).body
            assert body.startswith(b"body "), f"the body of the queued message {message_id} is lost"

    def recovered(self, objects: Objects, target: Path) -> None:
        """The recovery ends, and has all that is archived."""
        if read_identity(objects) is None or Manifest.load(objects, "metadata-0").end == 0:
            return
        if not (target / "log" / "layout.json").exists() or (target / "log" / "recovery.json").exists():
            try:
                recover(objects, target)
            except NotYetArchived:  # the archiver was killed behind the metadata, and the trim was made before
                floor = floors_of(target)["queues-0"].event.offset
                assert floor > Manifest.load(objects, "queues-0").end
                return
        missing = copy_keys(keys_of(target), KeyStore(self.data / "keys"), KeyStore(target / "keys"))
        assert missing == [], f"neither a key nor its tombstone is there: {missing}"
        end = Manifest.load(objects, "queues-0").end
        log = TieredLogReader(target).queues[0]
        machine = self.require_history(log, end)
        if end == len(self.records):  # else a message may be queued there, and its key be destroyed: it was acked later
            self.require_bodies(log, machine, KeyStore(target / "keys"))

    def finish(self, objects: Objects) -> None:
        self.check(objects)
        self.recovered(objects, self.directory / "last")
        manifest = Manifest.load(objects, "queues-0")
        assert manifest.end == len(self.records)
        left = {key for key in manifest.trimmed_keys if objects.size(key) is not None}
        assert left == set(), f"what was trimmed is there: {left}"


def die_before(step: int, directory: str) -> None:
    """End this process before its n-th change of a file below the directory."""
    left = step

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "open":
            changes = isinstance(values[2], int) and bool(values[2] & _WRITING)
        else:
            changes = event in ("os.rename", "os.remove", "os.link")
        if changes and str(values[0]).startswith(directory):
            left -= 1
            if left == 0:
                os._exit(KILLED)

    sys.addaudithook(hook)


def forked(program: Callable[[], object]) -> tuple[int, str]:
    """Run a function in a forked process. Returns its status and what it said."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status, text = FOUND, ""
        try:
            program()
            status = 0
        except (NoAnswer, TrimRefused) as error:
            status, text = REFUSED, str(error)
        except LogError as error:
            status, text = (REFUSED if any(each in str(error) for each in _NOT_YET) else FOUND), repr(error)
        except BaseException:
            text = traceback.format_exc()
        os.write(writing, text.encode()[-4_000:])
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        text = said.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def run(seed: int) -> set[str]:
    """Returns what programs met. Raises AssertionError, which names the seed."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    directory = Path(tempfile.mkdtemp(prefix=f"years-{seed}-", dir=memory))
    try:
        with patch.multiple(system_calls, sync=lambda descriptor: None, sync_data=lambda descriptor: None):
            return Years(directory / "all", seed).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# -- planted defects -------------------------------------------------------------------------------------------------


def remove_first(self: trims.Trimming, report: Any, machine: Machine, reason: str) -> Any:
    """Plant: what goes is removed before the event is durable."""
    event = _write_base(self, report, machine, reason)
    cut(Path(self.history.place), report.partition, report.offset)
    return event


def delete_more(manifest: Manifest, event: Any) -> None:
    """Plant: a segment goes from the archive that begins at the floor."""
    _delete_trimmed(manifest, event)
    if manifest.trims and manifest.segments:
        manifest.objects.delete(manifest.key(manifest.segments[0], manifest.segments[0].avro))


def all_due(self: Years) -> set[str]:
    """Plant: no queue holds a day back."""
    return set()


def all_closed(partition: local_space.LocalPartition) -> int:
    """Plant: what is closed may go, archived or not."""
    return len(partition.segments) - 1


def no_tombstone(self: KeyStore, key_id: str, source: KeyStore) -> bool:
    """Plant: of a key that was destroyed nothing is copied."""
    return not source.has_tombstone(key_id) and _take(self, key_id, source)


_write_base, _delete_trimmed, _take = trims.Trimming.write_base, archive_trims.delete_trimmed, KeyStore.take
PLANTED: dict[str, tuple[Any, str, Any]] = {
    "removed before the event": (trims.Trimming, "write_base", remove_first),
    "the base has no queued messages": (in_directory, "queued_records", lambda log, queued: iter(())),
    "more goes from the archive": (archive_trims, "delete_trimmed", delete_more),
    "what is not archived goes": (local_space, "covered", all_closed),
    "a queue holds no day back": (Years, "days_held", all_due),
    "no tombstone is copied": (KeyStore, "take", no_tombstone),
}


def main(first: int, end: int, defect: str = "") -> None:
    met: set[str] = set()
    gc.collect()
    gc.freeze()  # so that a fork copies little
    with patch.object(*PLANTED[defect]) if defect else nullcontext():
        for number in range(first, end):
            met |= run(number)
    print("\n".join(sorted(met)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
