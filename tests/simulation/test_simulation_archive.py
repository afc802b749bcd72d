"""Archivers on a store that fails: what the archive says it has, it has.

    python -m pytest tests/simulation/test_simulation_archive.py                  some dozens of seeds
    python -m pytest tests/simulation/test_simulation_archive.py -m slow          a thousand

A history of a seed: some runs of the archiver, while the log grows between them, and is trimmed twice. The store fails
in them (archive_store.py). After each run:

- Every entry names objects that are proven. The archived log is the beginning of the log, by its hash chain.
- The archive begins with offset 0, or at a floor of the log, with the base there. No object is gone but for those
  below a floor that the metadata log names.
- Any damage is in an object that the store has kept wrong, and the error names this object.

An operator deletes the objects that errors name, as docs/operators/archive.md tells. Then a last run makes the archive
whole: every object is proven, all pages are there, and nothing that was trimmed.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from rewindmq.engine.keeping.archive import archiver as archivers
from rewindmq.engine.keeping.archive import manifest as manifests
from rewindmq.engine.keeping.archive import state_files, trims
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments, verify
from rewindmq.engine.keeping.archive.identity import read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import ArchiveError, open_objects
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.projections import system_calls
from rewindmq.schemas.metadata_events import HistoryTrimmed
from tests.simulation.archive_store import FaultyStore, object_file
from tests.support.examples import rounds
from tests.support.failing_objects import Killed
from tests.support.records import START_MS, fill

PARTITIONS = ("metadata-0", "queues-0")
ENTRIES = 4  # of a page
WEAK_SPOTS = ("archive.json", "/manifest", "/pages", "/segments", "/snapshots", "/bases", ".blocks")
SEEDS = 60
MANY = 1_400
STAGES = 5
FLOORS = {2: 120, 4: 280}  # by the stage from which on the log begins there
SNAPSHOTS = {5, 75, 145, 215, 285}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A data directory at some moments of its life. It is trimmed at the third and at the fifth one."""
    directory = tmp_path_factory.mktemp("stages")
    for number in range(STAGES):
        data = directory / str(number)
        if number:
            shutil.copytree(directory / str(number - 1), data)
        log = EmbeddedLog.open(data, 1, segment_bytes=38_000)
        for group in range(2):
            fill(log.queues[0], range(40 * (2 * number + group), 40 * (2 * number + group + 1)))
            fill(log.metadata, range(2 * number + group, 2 * number + group + 1))
            log.commit_and_wait()
        log.close()
        path = data / "snapshots" / "queues-0" / f"{70 * number + 5:020d}.snapshot"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a snapshot at %d" % number)
        close_segments(data)
        if number in FLOORS:
            trim_to(data, FLOORS[number])
            close_segments(data)
    return [directory / str(number) for number in range(STAGES)]


def trim_to(data: Path, floor: int) -> None:
    reader = PartitionReader(data / "log" / "queues-0")
    [newest] = [each.max_timestamp_ms for each in reader.segments() if each.next_offset == floor]
    [report] = trim_directory(data, TrimRequest(before_ms=newest + 1, accept_findings=True), wall_ms=START_MS + 10**9)
    assert report.offset == floor


class History:
    """The history of a seed."""

    def __init__(self, stages: list[Path], directory: Path, seed: int) -> None:
        self.seed = seed
        self.stages = stages
        self.stage = 0
        self.chance = Random(seed)
        self.damaged: set[str] = set()
        self.objects = open_objects(str(directory), make=True)
        self.chains: dict[str, dict[int, bytes]] = {
            name: {end: chain for stage in stages for end, chain in chains_of(stage, name).items()}
            for name in PARTITIONS
        }

    def run(self) -> list[str]:
        """Returns the faults that it met."""
        met: list[str] = []
        weak_spot = self.chance.choice(WEAK_SPOTS)
        rates = {"": self.chance.choice((0, 0.01, 0.05)), weak_spot: self.chance.choice((0.1, 0.5))}
        for _ in range(self.chance.randint(1, 6)):
            store = FaultyStore(self.objects, self.chance, rates, self.damaged, self.other_archiver)
            try:
                Archiver(store, self.stages[self.stage]).run()
            except (NoAnswer, Killed):
                pass
            except LogError as error:
                if "misread" not in store.met:
                    self.delete_named(error)
            self.check()
            met += store.met
            self.stage = min(len(self.stages) - 1, self.stage + self.chance.randrange(2))
        self.finish()
        return met

    def other_archiver(self) -> None:
        try:
            Archiver(self.objects, self.stages[self.stage]).run()
        except LogError as error:
            self.require_damaged(error)

    def require_damaged(self, error: LogError) -> list[str]:
        """The objects that the error names. It must name one that the store has kept wrong."""
        named = [key for key in self.damaged if self.objects.place(key) in str(error)]
        assert named, f"seed {self.seed}: {error}, but wrong are {self.damaged}"
        return named

    def delete_named(self, error: LogError) -> None:
        for key in self.require_damaged(error):
            object_file(self.objects, key).unlink()
            self.damaged.remove(key)

    def check(self) -> None:
        """Every entry is proven, and what is wrong is named."""
        for name in PARTITIONS:
            for entry, error in verify(self.objects, name):
                assert entry is None or error is None, f"seed {self.seed}: an entry names what is not there: {error}"
                if error is not None:
                    self.require_damaged(error)
            manifest = Manifest(self.objects, name)
            try:
                manifest.refresh()
            except ArchiveError as error:
                self.require_damaged(error)
            wanted = self.chains[name].get(manifest.end)
            assert manifest.chain == wanted or manifest.end == 0, f"seed {self.seed}: another history at {manifest.end}"
            floor = max((at for since, at in FLOORS.items() if since <= self.stage), default=0)
            floor = floor if name == "queues-0" else 0
            assert manifest.floor in (0, *FLOORS.values()), f"seed {self.seed}: no floor at {manifest.floor}"
            assert manifest.floor <= floor, f"seed {self.seed}: nothing says that all below {manifest.floor} went"
            gone = manifest.trimmed_keys.keys() - self.keys(name)
            assert all(manifest.trimmed_keys[key] <= floor for key in gone), f"seed {self.seed}: {gone} went too early"

    def keys(self, name: str) -> set[str]:
        """The objects of a partition that may be trimmed."""
        return {key for each in trims.FOLDERS for key in self.objects.list(f"{name}/{each}")}

    def finish(self) -> None:
        """Runs without faults, and an operator, make the archive whole."""
        for _ in range(30):
            try:
                Archiver(self.objects, self.stages[-1]).run()
                break
            except LogError as error:
                self.delete_named(error)
        for key in [key for key in self.damaged if "/pages/" in key]:
            object_file(self.objects, key).unlink()
        Archiver(self.objects, self.stages[-1]).run()
        assert read_identity(self.objects) is not None
        for name in PARTITIONS:
            wrong = [str(error) for _, error in verify(self.objects, name) if error is not None]
            assert wrong == [], f"seed {self.seed}"
            manifest = Manifest.load(self.objects, name)
            assert manifest.end == max(self.chains[name]), f"seed {self.seed}"
            assert len(list(self.objects.list(f"{name}/pages"))) == manifest.whole_pages, f"seed {self.seed}"
        assert manifest.floor == max(FLOORS.values()), f"seed {self.seed}"
        assert {each.offset for each in manifest.snapshots} == {each for each in SNAPSHOTS if each >= manifest.floor}
        assert not manifest.trimmed_keys.keys() & self.keys("queues-0"), f"seed {self.seed}: what was trimmed is there"


def chains_of(data: Path, name: str) -> dict[int, bytes]:
    """The hash chain behind each block of a partition, by offset."""
    return {
        block.first_offset + len(block.records): block.chain for block in PartitionReader(data / "log" / name).read()
    }


def run(stages: list[Path], directory: Path, seed: int) -> list[str]:
    with (
        patch.object(manifests, "ENTRIES", ENTRIES),
        patch.object(archivers, "now_ms", lambda: 7),
        patch.object(state_files, "now_ms", lambda: 7),
        patch.object(trims, "now_ms", lambda: 7),
        patch.object(system_calls, "sync", lambda descriptor: None),  # no power fails here
    ):
        try:
            return History(stages, directory / str(seed), seed).run()
        finally:
            shutil.rmtree(directory / str(seed))


def run_many(stages: list[Path], directory: Path, seeds: range) -> set[str]:
    return {fault for seed in seeds for fault in run(stages, directory, seed)}


FAULTS = {"away", "unheard", "killed before", "killed behind", "slow", "cut", "changed", "misread"}


def test_whatever_fails_the_archive_is_true_and_is_completed(stages: list[Path], tmp_path: Path) -> None:
    assert run_many(stages, tmp_path, range(rounds(SEEDS, 20))) == FAULTS


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_thousand_histories(stages: list[Path], tmp_path: Path) -> None:
    assert run_many(stages, tmp_path, range(SEEDS, MANY)) == FAULTS


def test_one_history(asked_seed: int, stages: list[Path], tmp_path: Path) -> None:
    """`--seed N`"""
    print(run(stages, tmp_path, asked_seed))


def entry_before_proof(self: Archiver, manifest: Any, path: Path, report: Any) -> None:
    """Plant: the entry is added before the objects are proven."""
    with patch.object(Unpacked, "prove", lambda segment: None):
        archive_segment(self, manifest, path, report)
    Unpacked(self._objects, manifest.partition, manifest.segments[-1]).prove()


delete_trimmed = trims.delete_trimmed


def delete_more(manifest: Manifest, event: HistoryTrimmed) -> None:
    """Plant: a segment goes that begins at the floor."""
    delete_trimmed(manifest, event)
    if manifest.trims and manifest.segments:
        manifest.objects.delete(manifest.key(manifest.segments[0], manifest.segments[0].avro))


def entries_of_page(page: bytes, known: int, before: str, proof: bytes) -> list[bytes]:
    """Plant: a page is taken as it is."""
    return page.splitlines(keepends=True)[known:]


archive_segment = Archiver.archive_segment
PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "segments are not proven": (Unpacked, "prove", lambda segment: None),
    "snapshots are not proven": (state_files, "prove_file", lambda manifest, entry: None),
    "more goes than was trimmed": (trims, "delete_trimmed", delete_more),
    "the bases of trims are not looked for": (trims, "archive_base", lambda manifest, bases, event: None),
    "the entry comes before the proof": (Archiver, "archive_segment", entry_before_proof),
    "pages are not proven": (manifests, "proven_entries", entries_of_page),
}


@pytest.mark.rare
@pytest.mark.timeout(900)
@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_is_found(defect: str, stages: list[Path], tmp_path: Path) -> None:
    owner, name, wrong = PLANTED[defect]
    original = getattr(owner, name)

    def checked(history: History) -> None:
        with patch.object(owner, name, original):  # the judge is sound
            check(history)

    check = History.check
    spots = ("/pages",) if "pages" in defect else WEAK_SPOTS  # few pages are made
    with (
        patch(f"{__name__}.WEAK_SPOTS", spots),
        patch.object(owner, name, wrong),
        patch.object(History, "check", checked),
        pytest.raises(AssertionError, match="seed"),
    ):
        run_many(stages, tmp_path, range(300))
