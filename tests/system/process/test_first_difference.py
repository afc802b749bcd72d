"""Two versions of the fold over one history: the first event that they take differently is named (B-08)."""

import shutil
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from rewindmq.engine.cli import main as cli
from rewindmq.engine.log.embedded.cut import cut
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.reasons import MAXLEN
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import drive, events_of, groups_of
from rewindmq.projections.versions import compare as stepping
from rewindmq.projections.versions.compare import VersionError, first_difference
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Acked, Event, Purged
from rewindmq.schemas.registry import envelope_fingerprint
from rewindmq.schemas.values import Actor
from tests.support.other_schema import EARLIER, EARLIER_JSON, released
from tests.support.running import ROOT
from tests.support.traffic import Traffic
from tests.support.trimming import reader_of, starts, write_base, write_traffic

Changed = Callable[[str, str, str], Path]


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    traffic = Traffic(11)
    traffic.run(1_500)
    return traffic


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """Another version: this one, but that in `file` the text `old` is `new`."""

    def change(file: str, old: str, new: str) -> Path:
        for folder in ("projections", "schemas"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, tmp_path / "rewindmq" / folder, ignore=ignored)
        path = tmp_path / "rewindmq" / file
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))
        return tmp_path

    return change


@pytest.fixture(autouse=True)
def short_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "STRIDE", 200)


def first_of(traffic: Traffic, kind: type) -> int:
    return next(offset for offset, _, _, event in events_of(traffic.log) if type(event) is kind)


def test_b08_the_same_rules_agree(traffic: Traffic, changed: Changed) -> None:
    other = changed(
        "projections/verify.py", "LISTED_DIFFERENCES = 1_000", "LISTED_DIFFERENCES = 1"
    )  # which no fold imports
    assert first_difference(traffic.log, other) is None


def test_b08_only_sources_are_compared(traffic: Traffic, changed: Changed) -> None:
    """An extension module beside its source is another build, perhaps of another source. Python would prefer it."""
    other = changed("projections/verify.py", "LISTED_DIFFERENCES = 1_000", "LISTED_DIFFERENCES = 1")
    for module in ("schemas/codec", "projections/machine/machine"):
        (other / "rewindmq" / f"{module}{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    assert first_difference(traffic.log, other) is None


def test_b08_the_first_event_that_leads_to_something_else(traffic: Traffic, changed: Changed) -> None:
    """Though the states stay the same: a reason is in no state."""
    found = first_difference(
        traffic.log,
        changed("projections/machine/data/reasons.py", 'MAXLEN: Final = "maxlen"', 'MAXLEN: Final = "too long"'),
    )
    assert found is not None
    assert (found.partition, found.offset, found.event, found.user) == ("queues-0", *first_over_length(traffic))
    assert [text for text in found.here.effects if "'maxlen'" in text]
    assert [text.replace("maxlen", "too long") for text in found.here.effects] == found.there.effects
    assert list(found.fields()) == []


def first_over_length(traffic: Traffic) -> tuple[int, str, str]:
    """Offset, event and user of the first event for which a length limit decided."""
    found: list[tuple[int, str, str]] = []

    def after(offset: int, _timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        if any(getattr(effect, "reason", "") == MAXLEN for effect in effects):
            found.append((offset, type(event).__name__, actor.user))

    drive(Machine("queues-0"), groups_of(traffic.log, 0), Decoder(), after=after)
    return found[0]


def test_b08_the_first_event_that_leaves_another_state(traffic: Traffic, changed: Changed) -> None:
    other = changed("projections/machine/events/settlement.py", "queue.acked += count", "queue.acked += 2 * count")
    found = first_difference(traffic.log, other)
    assert found is not None
    assert (found.offset, found.event) == (first_of(traffic, Acked), "Acked")
    assert found.here.effects == found.there.effects
    [(_, field, here, there)] = found.fields()
    assert (field, here, there) == ("acked", 1, 2)
    assert first_difference(traffic.log, other, effects_only=True) is None


def test_b08_a_version_that_cannot_go_on(traffic: Traffic, changed: Changed) -> None:
    handler = "def on_purged(state: State, offset: int, actor: Actor, event: Purged, effects: list[Effect]) -> None:\n"
    other = changed("projections/machine/events/queues.py", handler, handler + "    raise KeyError(event.queue)\n")
    found = first_difference(traffic.log, other)
    assert found is not None
    assert (found.offset, found.event) == (first_of(traffic, Purged), "Purged")
    assert found.here.ended == ""
    assert found.there.ended.startswith("KeyError: ")


@pytest.fixture
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> PartitionReader:
    """A log that begins with a base."""
    data = tmp_path_factory.mktemp("data")
    write_traffic(data)
    write_base(data, starts(data)[2])
    cut(data, "queues-0", starts(data)[2])
    return reader_of(data)


def test_b08_a_log_that_was_trimmed_is_folded_from_its_base(cut_off: PartitionReader, changed: Changed) -> None:
    assert cut_off.start_offset > 0
    assert first_difference(cut_off, ROOT) is None
    other = changed("projections/machine/events/settlement.py", "queue.acked += count", "queue.acked += 2 * count")
    found = first_difference(cut_off, other)
    assert found is not None
    first = next(offset for offset, _, _, event in events_of(cut_off) if type(event) is Acked)
    assert (found.offset, found.event) == (first, "Acked")
    [(_, field, here, there)] = found.fields()
    assert (field, there) == ("acked", here + 1)  # type: ignore[operator]


def test_b08_a_version_that_cannot_begin_with_the_base(cut_off: PartitionReader, changed: Changed) -> None:
    other = changed("projections/machine/machine.py", "    def load(partition", "    def load_otherwise(partition")
    with pytest.raises(VersionError, match="it cannot begin with the state of the base: AttributeError"):
        first_difference(cut_off, other)


def test_b08_a_version_that_encodes_the_base_otherwise(cut_off: PartitionReader, changed: Changed) -> None:
    other = changed("projections/machine/machine.py", "return digest(self)", "return digest(self)[::-1]")
    with pytest.raises(VersionError, match="it encodes the state of the base otherwise: compare the effects alone"):
        first_difference(cut_off, other)
    assert first_difference(cut_off, other, effects_only=True) is None


def test_what_is_no_version_is_said(traffic: Traffic, changed: Changed, tmp_path: Path) -> None:
    with pytest.raises(VersionError, match="no version of RewindMQ: it has no projections/"):
        first_difference(traffic.log, tmp_path)
    other = changed("projections/machine/data/queue.py", "class Queue(", "class Queue((")
    with pytest.raises(VersionError, match="SyntaxError"):
        first_difference(traffic.log, other)


def test_compare_versions(
    changed: Changed, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path_factory.mktemp("data")
    log = EmbeddedLog.open(data, partitions=1)
    traffic = Traffic(11, log=log.queues[0])
    traffic.run(1_500)
    log.commit_and_wait()
    log.close()
    offset, event, user = first_over_length(traffic)
    asked = ["compare_versions", "--data", str(data), "--silent"]
    assert cli.run([*asked, str(ROOT)]) == 0
    assert capsys.readouterr().out == f"queues-0\t{traffic.machine.next_offset}\tequal\n"
    other = changed("projections/machine/data/reasons.py", 'MAXLEN: Final = "maxlen"', 'MAXLEN: Final = "too long"')
    assert cli.run([*asked, str(other)]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == f"queues-0\t{traffic.machine.next_offset}\tdiffers from offset {offset} on"
    assert lines[1].startswith(f"queues-0 offset {offset}: {event} by {user}, 2025-11-21T03:00:")
    assert "'maxlen'" in lines[2]
    assert "'too long'" in lines[3]
    assert err == f"Error: {other} folds 1 of 1 partitions differently\n"
    assert cli.run(["compare_versions", str(other)]) == 64
    assert cli.run([*asked, str(data)]) == 65
    assert capsys.readouterr().err.endswith("it has no projections/\n")


def test_b08_a_version_that_does_not_know_todays_schema(
    traffic: Traffic, changed: Changed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the records under the newest schema that it has, and brings them up to what it calls today's."""
    older = changed("projections/verify.py", "LISTED_DIFFERENCES = 1_000", "LISTED_DIFFERENCES = 1")
    known = older / "rewindmq" / "schemas" / "released"
    (known / f"{envelope_fingerprint()}.avsc").rename(known / f"{EARLIER}.avsc").write_text(EARLIER_JSON)
    sent: set[bytes] = set()
    fold = stepping.Stepper.fold

    def noted(stepper: stepping.Stepper, offset: int, time_ms: int | None, record: bytes) -> None:
        if stepper.version == older:
            sent.add(stepper._sent(record)[:10])
        fold(stepper, offset, time_ms, record)

    monkeypatch.setattr(stepping.Stepper, "fold", noted)
    (tmp_path / "released").mkdir()
    with released(tmp_path / "released"):
        assert first_difference(traffic.log, older) is None
    assert sent == {b"\xc3\x01" + bytes.fromhex(EARLIER)}
