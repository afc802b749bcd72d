"""The files in which an audit is stored: an audit that is read back goes on as if it had never stopped, and what is no
such file is refused."""

import dataclasses
import hashlib
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.projections import system_calls
from rewindmq.projections.claims import Claims
from rewindmq.projections.clean_stops import CleanStops
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.events import CheckpointAsked, Checkpointed, Credited, Event, Published
from rewindmq.schemas.values import Deduplication, Policy
from rewindmq.spark_replay.audit.consumers import Attached
from rewindmq.spark_replay.audit.dead_letter_join import LetterRows
from rewindmq.spark_replay.audit.file_format import (
    FORMAT,
    STORED,
    Column,
    Fields,
    Many,
    StoredAudit,
    TupleColumn,
    differences,
    packed,
    resumed,
    unpacked,
)
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.identities import Identities
from rewindmq.spark_replay.audit.ledger import Account
from rewindmq.spark_replay.audit.ledger_files import BadLedger, Ledgers
from rewindmq.spark_replay.audit.limits import read_limits
from rewindmq.spark_replay.audit.prefetch import Prefetches
from rewindmq.spark_replay.audit.priority_levels import Levels
from rewindmq.spark_replay.audit.watch import AuditStates
from tests.support.events_for_tests import START_MS, VHOST, route_once, text_id
from tests.support.random_history import History, Step
from tests.support.repetition import Repetition
from tests.support.spark.audit_samples import GOLDEN, arrays, bytes_in, golden, sample
from tests.support.traffic import ANN, queue_declared

NAME = "queues-0"
# Attributes that are not stored, as another one gives them, the machine does, or they belong to one run or one event
NOT_STORED = {
    AuditProduct: {
        *("partition", "machine", "account_of", "plain", "publishes"),
        *("rows", "letter_rows", "quarantine", "at_end", "leaving", "owed"),
    },
    Account: {"queue", "report", "limits"},
}


class Deduplicated(History):
    """A history with ids of messages, and brokers that claim a state or say that they stop."""

    def _settings(self) -> dict[str, object]:
        once = {"message_deduplication": True, "x_message_deduplication": True}  # for arguments, and for policies
        return super()._settings() | (once if self.dice.random() < 0.4 else {})

    def _event(self) -> tuple[Event, int]:
        if self.dice.random() < 0.02:
            return self._of_a_broker(), 0
        alone = [each for each in self.machine.queues() if len(each.holders) == 1]
        if alone and self.dice.random() < 0.1:
            queue = self.dice.choice(alone)
            [holder] = queue.holders.values()
            return Credited(VHOST, queue.name, holder.consumer, self.dice.choice((0, 2, 9))), holder.session
        event, session = super()._event()
        if isinstance(event, Published) and self.dice.random() < 0.6:
            asked = self.dice.choice(
                (Deduplication("x", 8, None), *(Deduplication("y", size, 300) for size in (5, 30)))
            )
            event = dataclasses.replace(
                event,
                properties=text_id(f"{self.dice.randrange(20)}", self.dice.choice((None, 7))),
                route=route_once(asked, *event.route.queues) if self.dice.random() < 0.5 else event.route,
            )
        return event, session

    def _of_a_broker(self) -> Event:
        """A claim of a broker alone, or a node's, or the question for one."""
        if self.dice.random() < 0.3:
            return CheckpointAsked()
        at, digest, final = self.machine.next_offset - 1, self.machine.digest(), self.dice.random() < 0.3
        return Checkpointed(at, digest, final=final, node=self.dice.choice(("", "red")))


def repetition(seed: int) -> list[Step]:
    made, decoder, steps = Repetition(seed).log(300), Decoder(), list[Step]()
    for offset, record in zip(made.offsets, made.records, strict=True):
        with suppress(UndecodableRecord):
            steps.append((offset, *decoder.decode(record)))
    return steps


def histories(seed: int) -> list[Step]:
    return [repetition(seed), list(History(seed).steps(300)), list(Deduplicated(seed).steps(300))][seed % 3]


Again = Callable[[AuditProduct], AuditProduct]


def audited(steps: list[Step], again: Again, seed: int | None = None) -> tuple[list[Any], bytes]:
    """The findings and the letters of an audit that is stored and read back at every event, and its last ledger.

    `seed`: of effects that the machine is said to have forgotten."""
    product = AuditProduct(NAME, LetterRows(NAME, 1 << 60))
    product.begin(Machine(NAME))
    found, dice = [], random.Random(seed)
    for offset, now_ms, actor, event in steps:
        effects: list[Effect] = []
        machine = product.machine
        if isinstance(event, Checkpointed):
            product.before(offset, now_ms, event)
        machine.apply(offset, now_ms, actor, event, effects)
        if seed is not None and effects and dice.random() < 0.02:
            effects.remove(dice.choice(effects))
        product.event(offset, now_ms, actor, event, effects)
        found += taken(product, product.events % 50 == 0)
        product = again(product)
    found += taken(product, True)
    return found, packed(ledger_of(product))


def taken(product: AuditProduct, last: bool) -> list[Any]:
    return [row for batch in product.take(last) for row in batch.to_pylist()]


def ledger_of(product: AuditProduct) -> StoredAudit:
    assert product.letter_rows is not None
    machine = product.machine
    return StoredAudit(machine.digest(), machine.head(), product, product.letter_rows.under_way, [])


def through_a_ledger(path: Path) -> Again:
    def again(product: AuditProduct) -> AuditProduct:
        path.write_bytes(packed(ledger_of(product)))
        found = unpacked(path)
        read = resumed(product.machine, found.beliefs)
        read.letter_rows = product.letter_rows
        assert read.letter_rows is not None
        assert read.letter_rows.under_way == found.under_way
        return read

    return again


def through_a_state(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Again:
    """Return a function that saves an audit with its machine, and loads both."""
    monkeypatch.setattr(system_calls, "sync", lambda file: None)
    states = AuditStates(directory, NAME)

    def again(product: AuditProduct) -> AuditProduct:
        states.save(product.events, product)
        read = states.before(product.events + 1)
        read.letter_rows = product.letter_rows
        return read

    return again


@pytest.mark.parametrize("lied", [None, 1], ids=["sound", "lied"])
@pytest.mark.parametrize("seed", range(6))
def test_an_audit_that_is_read_back_at_every_event_finds_the_same(seed: int, lied: int | None, tmp_path: Path) -> None:
    steps = histories(seed)
    found, ledger = audited(steps, lambda product: product, lied)
    assert audited(steps, through_a_ledger(tmp_path / "ledger"), lied) == (found, ledger)
    checks = {row["check"] for row in found if not row.get("ok", True)}
    assert bool(checks - {"claims", "last words"}) == (lied is not None), checks


@pytest.mark.parametrize("seed", [1, 5])
def test_an_audit_and_its_machine_read_back_at_every_event_find_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = histories(seed)
    again = through_a_state(tmp_path, monkeypatch)
    assert audited(steps, again, seed) == audited(steps, lambda product: product, seed)


def test_the_histories_above_fill_every_field() -> None:
    filled: set[str] = set()

    def note(product: AuditProduct) -> AuditProduct:
        filled.update(path for path, values in arrays(STORED, ledger_of(product)).items() if values)
        return product

    for seed in range(12):
        audited(histories(seed), note, seed % 4 or None)
    empty = {path for path in arrays(STORED, sample()) if not path.startswith("pieces")} - filled
    assert empty == {f"beliefs.words.found[].{name}" for name in ("final", "first", "end", "odd")}  # within an event


def tables(column: Column) -> Iterator[Fields]:
    """The tables of classes in a column."""
    if isinstance(column, Fields):
        yield column
    inside: list[Column] = []
    if isinstance(column, TupleColumn):
        inside = [*column.fields.values()]
    elif isinstance(column, Many):
        inside = [column.items]
    for each in inside:
        yield from tables(each)


def product_with_a_queue() -> AuditProduct:
    machine, product, effects = Machine(NAME), AuditProduct(NAME, LetterRows(NAME, 0)), list[Effect]()
    product.begin(machine)
    declared = queue_declared("q")
    machine.apply(0, START_MS, ANN, declared, effects)
    product.event(0, START_MS, ANN, declared, effects)
    return product


def test_every_attribute_has_its_field() -> None:
    product = product_with_a_queue()
    [account] = product.accounts.values()
    live = [product, account, Prefetches(), Attached(), Claims(), CleanStops(), Identities(0), Levels(None, 0, False)]
    attributes = {type(each): vars(each).keys() - NOT_STORED.get(type(each), set()) for each in live}
    for table in tables(STORED):
        if dataclasses.is_dataclass(table.cls):
            assert set(table.fields) == {each.name for each in dataclasses.fields(table.cls)}
        else:
            assert set(table.fields) == attributes[table.cls], table.cls
    assert {table.cls for table in tables(STORED)} > attributes.keys()
    for cls, names in NOT_STORED.items():
        assert names <= vars(product if cls is AuditProduct else account).keys()


def test_the_format_is_golden(tmp_path: Path) -> None:
    """An accidental change fails here. One that is meant has another FORMAT, and another golden file."""
    kept = GOLDEN.read_text()
    assert golden() == kept
    path = tmp_path / "stored"
    path.write_bytes(bytes_in(kept))
    assert path.read_bytes().startswith(b"RewindMQ audit, format %d\n" % FORMAT)
    assert differences(unpacked(path), sample()) == []


# -- what is no such file -----------------------------------------------------------------------------------------


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("code of a file was run",)


def sealed(avro: bytes) -> bytes:
    return b"RewindMQ audit, format %d\n" % FORMAT + hashlib.sha256(avro).digest() + avro


def of_an_unknown_queue() -> bytes:
    product = product_with_a_queue()
    [account] = product.accounts.values()
    account.key = ("/", "another")
    return packed(ledger_of(product))


def of_format(number: int) -> bytes:
    return SOUND.replace(b"format %d\n" % FORMAT, b"format %d\n" % number, 1)


PICKLED = pickle.dumps({"format": 7, "beliefs": Harmful()}, protocol=5)
SOUND = packed(ledger_of(product_with_a_queue()))
AVRO = SOUND[25 + 32 :]
UNUSABLE = {
    "cut short": (SOUND[:-1], "damaged"),
    "cut in its digest": (SOUND[:30], "damaged"),
    "longer": (SOUND + b"\0", "damaged"),
    "a bit flipped": (SOUND[:-9] + bytes([SOUND[-9] ^ 1]) + SOUND[-8:], "damaged"),
    "empty": (b"", "not a file of an audit"),
    "the next format": (of_format(FORMAT + 1), f"format {FORMAT + 1}, this program reads format {FORMAT}"),
    "format 11": (of_format(11), f"format 11, this program reads format {FORMAT}"),
    "pickled": (hashlib.sha256(PICKLED).digest() + PICKLED, "not a file of an audit"),
    "pickled and sealed": (sealed(PICKLED), "damaged"),
    "sealed, of nothing": (sealed(b""), "damaged"),
    "sealed, cut short": (sealed(AVRO[:-1]), "damaged"),
    "sealed, of noise": (sealed(random.Random(1).randbytes(400)), "damaged"),
    "sealed, with a negative count": (sealed(AVRO[:-1] + b"\x01"), "damaged"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_is_no_ledger_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, why = UNUSABLE[name]
    product = product_with_a_queue()
    ledgers = Ledgers(Snapshots(tmp_path), NAME)
    ledgers.folder.mkdir()
    path = ledgers.folder / f"{product.machine.next_offset:020d}.ledger"
    path.write_bytes(content)
    with pytest.raises(BadLedger, match=f"ledger: cannot be used: .*{why}"):
        ledgers.begin(product.machine, LetterRows(NAME, 0))
    assert why in (ledgers.differs(product) or "")


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_is_no_state_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, why = UNUSABLE[name]
    states = AuditStates(tmp_path, NAME)
    states.directory.mkdir()
    (states.directory / f"{1:020d}.audit").write_bytes(content)
    with pytest.raises(LogError, match=why):
        states.before(2)


def test_a_ledger_with_an_account_of_no_queue_is_refused(tmp_path: Path) -> None:
    product = product_with_a_queue()
    ledgers = Ledgers(Snapshots(tmp_path), NAME)
    ledgers.folder.mkdir()
    (ledgers.folder / f"{product.machine.next_offset:020d}.ledger").write_bytes(of_an_unknown_queue())
    with pytest.raises(BadLedger, match="an account of //another, but no queue"):
        ledgers.begin(product.machine, LetterRows(NAME, 0))
    assert ledgers.differs(product) == "beliefs"


# -- large numbers ------------------------------------------------------------------------------------------------


def test_a_limit_of_more_than_62_bits_is_no_limit_and_an_age_may_be_any() -> None:
    policy = Policy("p", f'{{"max-length":{1 << 62},"message-ttl":5}}', 1)
    limits = read_limits("classic", (), policy, None)
    assert (limits.max_length, limits.message_ttl_ms) == (None, 5)
    age = read_limits("stream", (), Policy("p", '{"max-age":"999999999999999Y"}', 1), None)
    assert (age.max_age_ms or 0) > 1 << 64


def test_a_time_of_more_than_64_bits_is_refused() -> None:
    product = product_with_a_queue()
    product.now_ms = 1 << 63
    with pytest.raises(LogError, match="times or sizes that no broker writes"):
        packed(ledger_of(product))
