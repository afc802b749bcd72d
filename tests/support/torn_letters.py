"""Archives that have dead letters in their target, and lack the deaths in the source."""

import os
import shutil
from pathlib import Path

from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.projections.machine.data.effects import DeadLetter, Effect
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import BROKER, Actor, Origin, Route
from tests.support.letters import message_of
from tests.support.spark.histories import Recorder


class LetterRecorder(Recorder):
    """A recorder with a segment for each record, whose dead letters go to a queue of another partition."""

    def __init__(self, data: Path) -> None:
        self.letters: list[DeadLetter] = []
        super().__init__(data)

    def append(self, index: int, actor: Actor, event: Event) -> int:
        offset = super().append(index, actor, event)
        self.log.commit_and_wait()
        self.log.queues[index].roll()
        self.now_ms += 1
        return offset

    def follow(self, effects: list[Effect]) -> None:
        super().follow(effects)
        self.letters += [each for each in effects if isinstance(each, DeadLetter)]

    def declare_both(self) -> str:
        """Declare `dead`, and a queue of another partition whose messages die into it. Returns the latter's name."""
        target = self.partition("dead")
        name = next(f"q{n}" for n in range(99) if self.partition(f"q{n}") != target)
        self.declare("dead")
        self.declare(name, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        return name

    def forward(self, index: int) -> int:
        """Publish the last letter to the queue `dead`, as a broker does. Returns its offset in partition `index`."""
        letter = self.letters[-1]
        queue = letter.queue
        origin = Origin("/", queue.name, queue.queue_id, message_of(letter), letter.reason, letter.sequence)
        route = Route("/", "", "dead", ("dead",))
        event = Published(route, b"\x10\x00\x02", persistent=True, origin=origin, body=b"body", body_size=4)
        return self.append(index, BROKER, event)


def dies(history: LetterRecorder, name: str) -> int:
    """Publish a message, and let the first one die and arrive in `dead`. Returns the offset of its death."""
    history.publish(name, b"body")
    history.get(name, 1)
    died = history.nack(name, 1, *history.out[1], requeue=False)
    history.forward(history.partition("dead"))
    return died


def cut(whole: Path, to: Path, ends: dict[str, int]) -> ArchivedLog:
    """The archive with so many entries of each partition."""
    to.mkdir()
    shutil.copy(whole / "archive.json", to)
    for name, end in ends.items():
        (to / name / "manifest").mkdir(parents=True)
        os.symlink(whole / name / "segments", to / name / "segments")
        for path in sorted((whole / name / "manifest").iterdir())[:end]:
            shutil.copy(path, to / name / "manifest")
    return ArchivedLog(str(to))
