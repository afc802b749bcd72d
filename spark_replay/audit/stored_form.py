"""The stored form of an audit, which the files of a watch (state_file.py) and ledgers (ledger_files.py) have in common.

    RewindMQ audit, format 1\\n | SHA-256 of the rest (32 bytes) | Avro of a StoredState or a StoredLedger

Each class below that is stored has one table of its fields. Avro has the values in columns: of many objects one array
for each field, and of a dictionary its keys and its values. A message in a queue takes about 6 bytes.

Rules
- A change of any table is another FORMAT. A file of another format is not read.
- A file is data only, and reading it runs no code from it.
- Every attribute of a stored class is in its table, or in the list of the test that compares the two.
"""

import hashlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from itertools import chain, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rewindmq.engine.log.contract import LogError
from rewindmq.projections.claims import Claims
from rewindmq.projections.last_words import Behind, LastWords
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.values import Argument, Policy
from rewindmq.spark_replay.audit.consumers import Attached
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.identities import Identities
from rewindmq.spark_replay.audit.ledger import Account
from rewindmq.spark_replay.audit.limits import Limits
from rewindmq.spark_replay.audit.prefetch import Prefetches
from rewindmq.spark_replay.audit.priority_levels import Levels

FORMAT = 1
_HEADER = b"RewindMQ audit, format %d\n" % FORMAT


# -- columns ----------------------------------------------------------------------------------------------------------


class Column(Protocol):
    """A column of values of one kind, as Avro has it."""

    def schema(self, name: str) -> dict[str, Any]:
        """Return the column's Avro schema. `name`: a prefix for the names of its records."""

    def write(self, values: list[Any]) -> Any:
        """Return the column of these values."""

    def read(self, column: Any) -> list[Any]:
        """Return the values of a column."""


class Plain:
    """Values of an Avro type."""

    def __init__(self, *types: str) -> None:
        self.items = types[0] if len(types) == 1 else list(types)

    def schema(self, name: str) -> dict[str, Any]:
        return {"type": "array", "items": self.items}

    def write(self, values: list[Any]) -> Any:
        return values

    def read(self, column: Any) -> list[Any]:
        values: list[Any] = column
        return values


class Record:
    """Values with fields. Each field is a column."""

    def __init__(self, **fields: Column) -> None:
        self.fields = fields

    def schema(self, name: str) -> dict[str, Any]:
        fields = [{"name": each, "type": column.schema(f"{name}_{each}")} for each, column in self.fields.items()]
        return {"type": "record", "name": name, "fields": fields}

    def write(self, values: list[Any]) -> Any:
        gets = self.getters()
        columns = zip(self.fields.items(), gets, strict=True)
        return {name: column.write(list(map(get, values))) for (name, column), get in columns}

    def read(self, column: Any) -> list[Any]:
        rows = zip(*(each.read(column[name]) for name, each in self.fields.items()), strict=True)
        return list(map(self.made, rows))

    def getters(self) -> Iterable[Callable[[Any], Any]]:
        """Yields the function that takes each field from a value: here, an item of a tuple."""
        return map(itemgetter, range(len(self.fields)))

    def made(self, row: tuple[Any, ...]) -> Any:
        """Return the value with these fields."""
        return row


class Fields(Record):
    """Objects of a class. Attributes that are not fields are missing from an object that was read."""

    def __init__(self, cls: type, **fields: Column) -> None:
        super().__init__(**fields)
        self.cls = cls

    def getters(self) -> Iterable[Callable[[Any], Any]]:
        return map(attrgetter, self.fields)

    def made(self, row: tuple[Any, ...]) -> Any:
        values = dict(zip(self.fields, row, strict=True))
        if is_dataclass(self.cls):
            return self.cls(**values)
        made: Any = object.__new__(self.cls)
        for name, value in values.items():
            setattr(made, name, value)
        return made


class Many:
    """Collections: how many values each has, and all these values behind each other."""

    def __init__(self, items: Column, listed: Callable[[Any], list[Any]], made: Callable[[list[Any]], Any]) -> None:
        self.items = items
        self.listed = listed
        self.made = made

    def schema(self, name: str) -> dict[str, Any]:
        return Record(counts=LONG, items=self.items).schema(name)

    def write(self, values: list[Any]) -> Any:
        lists = [self.listed(each) for each in values]
        return {"counts": list(map(len, lists)), "items": self.items.write(list(chain.from_iterable(lists)))}

    def read(self, column: Any) -> list[Any]:
        items = iter(self.items.read(column["items"]))
        return [self.made(list(islice(items, count))) for count in column["counts"]]


class Map:
    """Dictionaries, each in its order: how many keys it has; all keys, and all values, behind each other."""

    def __init__(self, keys: Column, values: Column) -> None:
        self.keys = keys
        self.values = values

    def schema(self, name: str) -> dict[str, Any]:
        return Record(counts=LONG, keys=self.keys, values=self.values).schema(name)

    def write(self, values: list[Any]) -> Any:
        return {
            "counts": list(map(len, values)),
            "keys": self.keys.write(list(chain.from_iterable(values))),
            "values": self.values.write(list(chain.from_iterable(each.values() for each in values))),
        }

    def read(self, column: Any) -> list[Any]:
        items = zip(self.keys.read(column["keys"]), self.values.read(column["values"]), strict=True)
        return [dict(islice(items, count)) for count in column["counts"]]


def _keys(keys: Column) -> Many:
    """Dictionaries that are sets in an order."""
    return Many(keys, list, dict.fromkeys)


def _optional(value: Column) -> Many:
    return Many(value, lambda each: [] if each is None else [each], lambda values: values[0] if values else None)


LONG, TEXT, BOOL, BYTES = Plain("long"), Plain("string"), Plain("boolean"), Plain("bytes")
LONG_OR_NONE, TEXT_OR_NONE = Plain("null", "long"), Plain("null", "string")


# -- what is stored ---------------------------------------------------------------------------------------------------

_NUMBERS = Map(LONG, LONG)
_QUEUE = Record(vhost=TEXT, name=TEXT)
_CHANNEL = Record(session=LONG, number=LONG)
_ARGUMENT = Fields(Argument, name=TEXT, type=TEXT, value=Plain("null", "boolean", "long", "double", "string", "bytes"))
_POLICY = Fields(Policy, name=TEXT, definition=TEXT, version=LONG)
_IDENTITY = Record(kind=TEXT, value=BYTES)

LIMITS = Fields(
    Limits,
    max_length=LONG_OR_NONE,
    max_length_bytes=LONG_OR_NONE,
    message_ttl_ms=LONG_OR_NONE,
    delivery_limit=LONG_OR_NONE,
    drops_head=BOOL,
    dead_letter_exchange=TEXT_OR_NONE,
    max_age_ms=Many(TEXT, lambda ms: [] if ms is None else [str(ms)], lambda found: int(found[0]) if found else None),
    retry=_optional(Record(kind=TEXT, least_ms=LONG, most_ms=LONG)),
)
LEVELS = Fields(
    Levels,
    highest=LONG_OR_NONE,
    default=LONG,
    returned_first=BOOL,
    level_of=_NUMBERS,
    ready=_keys(LONG),
    back=_keys(LONG),
    counts=_NUMBERS,
)
IDENTITIES = Fields(
    Identities,
    since=LONG,
    inside=Map(_IDENTITY, Record(message=LONG, until_ms=LONG)),
    through=Map(TEXT, Map(_IDENTITY, Record(message=LONG, until_ms=LONG, number=LONG))),
    counts=Map(TEXT, LONG),
    sizes=Map(TEXT, LONG),
    sure_from=Map(TEXT, LONG),
)
ACCOUNT = Fields(
    Account,
    key=_QUEUE,
    declared_ms=LONG,
    sizes=_NUMBERS,
    out=_NUMBERS,
    expires=_NUMBERS,
    returned=_NUMBERS,
    counted=_NUMBERS,
    flagged=_keys(LONG),
    acquired=_NUMBERS,
    waiting=_NUMBERS,
    published=_NUMBERS,
    bytes_ready=LONG,
    bytes_out=LONG,
    bytes_waiting=LONG,
    last_first=_NUMBERS,
    last_cut=LONG,
    crashed=LONG,
    counters=Map(TEXT, LONG),
    letters=Map(Record(vhost=TEXT, queue=TEXT, queue_id=LONG, partition=LONG, relocated=BOOL), LONG),
    restored=Map(Record(restore=TEXT, vhost=TEXT, queue=TEXT, queue_id=LONG), Many(LONG, sorted, set)),
    quorum=BOOL,
    stream=BOOL,
    later=BOOL,
    delays=BOOL,
    arguments=Many(_ARGUMENT, list, tuple),
    single_active=BOOL,
    limits=LIMITS,
    once=BOOL,
    levels=LEVELS,
    paused=BOOL,
    since=LONG,
    identities=_optional(IDENTITIES),
    moves=BOOL,
    relocated_at=LONG,
)
PREFETCHES = Fields(
    Prefetches,
    own=_NUMBERS,
    queues=Map(LONG, _QUEUE),
    lookaheads=_NUMBERS,
    holding=_NUMBERS,
    channels=Map(_CHANNEL, Map(LONG, BOOL)),
    limits=Map(_CHANNEL, LONG),
    limited=Map(LONG, _CHANNEL),
)
ATTACHED = Fields(
    Attached,
    consumers=Map(LONG, Record(queue=_QUEUE, session=LONG, channel=LONG, no_ack=BOOL, priority=LONG)),
    active=Map(_QUEUE, LONG),
    challenged=_keys(_QUEUE),
    used=Map(LONG, _keys(_QUEUE)),
)
CLAIMS = Fields(
    Claims,
    count=LONG,
    held_at=LONG,
    claimants=_keys(TEXT),
    asked=Map(LONG, TEXT),
    passed_by=LONG,
)
LAST_WORDS = Fields(
    LastWords,
    found=Many(Fields(Behind, final=LONG, first=LONG, end=LONG, odd=LONG), list, list),
    count=LONG,
    final=LONG,
    odd=LONG,
)
PRODUCT = Fields(
    AuditProduct,
    failures=Map(TEXT, LONG),
    accounts=Many(ACCOUNT, lambda accounts: list(accounts.values()), lambda found: {each.key: each for each in found}),
    prefetches=PREFETCHES,
    attached=ATTACHED,
    letters=_NUMBERS,
    offset=LONG,
    now_ms=LONG,
    ahead_ms=LONG,
    least_ms=LONG,
    events=LONG,
    claims=CLAIMS,
    words=LAST_WORDS,
    lost=_keys(LONG),
    policies=Map(Record(vhost=TEXT, policy=_POLICY), LONG),
    quarantined=LONG,
    first_quarantined=LONG,
    told=Many(Record(check=TEXT, queue=TEXT_OR_NONE, message_id=LONG_OR_NONE), partial(sorted, key=repr), set),
    unlisted=Map(TEXT, LONG),
)


@dataclass(frozen=True, slots=True)
class StoredState:
    """An audit that goes on, and its machine: `digest`, `head` and `pieces` (meta and chunks of each queue)."""

    digest: str
    head: bytes
    pieces: list[tuple[bytes, dict[int, bytes]]]
    beliefs: AuditProduct


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """An audit beside a snapshot, which has the machine's `digest` and `head`. `under_way`: of its LetterRows."""

    digest: str
    head: bytes
    beliefs: AuditProduct
    under_way: dict[tuple[int, int], int]


Stored = TypeVar("Stored", StoredState, StoredLedger)
FILES: dict[type, Fields] = {
    StoredState: Fields(
        StoredState,
        digest=TEXT,
        head=BYTES,
        pieces=Many(Record(meta=BYTES, chunks=Map(LONG, BYTES)), list, list),
        beliefs=PRODUCT,
    ),
    StoredLedger: Fields(
        StoredLedger,
        digest=TEXT,
        head=BYTES,
        beliefs=PRODUCT,
        under_way=Map(Record(queue_id=LONG, message_id=LONG), LONG),
    ),
}


def resumed(machine: Machine, beliefs: AuditProduct) -> AuditProduct:
    """Return the audit with these stored beliefs, beside the machine as it was then.

    Raises LogError when the two are not of one history."""
    product = AuditProduct(machine.partition)
    vars(product).update(vars(beliefs), machine=machine)
    for account in product.accounts.values():
        queue = machine.queue(*account.key)
        if queue is None:
            raise LogError(f"there is an account of {'/'.join(account.key)}, but no queue")
        account.queue, account.report = queue, product.fail
        product.account_of[queue] = account
    return product


# -- files ------------------------------------------------------------------------------------------------------------


def packed(value: Stored) -> bytes:
    """Return the content of a file.

    Raises LogError for a number of more than 64 bits."""
    import fastavro

    file = io.BytesIO()
    try:
        fastavro.schemaless_writer(file, _schema(FILES[type(value)]), FILES[type(value)].write([value]))
    except OverflowError as error:
        raise LogError(f"the history has times or sizes that no broker writes: {error}") from None
    avro = file.getvalue()
    return _HEADER + hashlib.sha256(avro).digest() + avro


def unpacked(kind: type[Stored], path: Path) -> Stored:
    """Return the value in a file.

    Raises OSError, and LogError for a file that is damaged or of another format."""
    import fastavro

    content = path.read_bytes()
    if not content.startswith(_HEADER):
        raise LogError(f"{path}: of another version of the audit; begin again with another directory")
    at = len(_HEADER) + hashlib.sha256().digest_size
    digest, avro = content[len(_HEADER) : at], content[at:]
    if hashlib.sha256(avro).digest() != digest:
        raise LogError(f"{path}: damaged; begin again with another directory")
    try:
        [value] = FILES[kind].read(fastavro.schemaless_reader(io.BytesIO(avro), _schema(FILES[kind]), None))
    except Exception as error:  # it was forged: fastavro and the columns fail in many ways
        raise LogError(f"{path}: damaged: {type(error).__name__}: {error}") from None
    assert isinstance(value, kind)
    return value


def differences(one: Stored, other: Stored) -> list[str]:
    """Return the fields in which they differ."""
    columns, others = (FILES[type(each)].write([each]) for each in (one, other))
    return [name for name in columns if columns[name] != others[name]]


@cache
def _schema(table: Fields) -> Any:
    import fastavro

    return fastavro.parse_schema(table.schema(table.cls.__name__))
