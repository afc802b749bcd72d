"""The stored form of an audit, which the files of a watch (watch.py) and ledgers (ledger_files.py) have in common.

    RewindMQ audit, format 1\n | SHA-256 of the rest (32 bytes) | a StoredAudit: its columns, an Avro array each

Each class that is stored has one table of its fields. The values are in columns: of many objects an array for each
field, of dictionaries their keys and their values. A message in a queue takes 6 to 16 bytes.

Rules
- A change of any table is another FORMAT. A file of another format is not read.
- A file is data only, and reading it runs no code from it.
- Every attribute of a stored class is in its table, or in the list of the test that compares the two.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from functools import partial
from io import BytesIO
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Union

import fastavro

from rewindmq.engine.log.contract import LogError
from rewindmq.projections.claims import Claims
from rewindmq.projections.clean_stops import Behind, CleanStops
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.formats import other_format
from rewindmq.schemas.values import Argument, Policy
from rewindmq.spark_replay.audit.consumers import Attached
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.identities import Identities
from rewindmq.spark_replay.audit.ledger import Account
from rewindmq.spark_replay.audit.prefetch import Prefetches
from rewindmq.spark_replay.audit.priority_levels import Levels

FORMAT = 1
_HEADER = b"RewindMQ audit, format %d\n" % FORMAT
_OTHER = re.compile(rb"RewindMQ audit, format ([0-9]{1,9})\n")
_DIGEST_BYTES = 32  # of SHA-256

# -- columns: each writes values as Avro, and reads them ---------------------------------------------------------------

Column = Union["Plain", "TupleColumn", "Many"]


class Plain:
    """Values of an Avro type, or of several."""

    def __init__(self, *types: str) -> None:
        self.items = types[0] if len(types) == 1 else list(types)
        self.schema = fastavro.parse_schema({"type": "array", "items": self.items})

    def write(self, file: BytesIO, values: Iterable[Any]) -> None:
        fastavro.schemaless_writer(file, self.schema, list(values))

    def read(self, file: BytesIO) -> Any:
        return fastavro.schemaless_reader(file, self.schema, None)


class TupleColumn:
    """Tuples. Each of their fields is a column."""

    def __init__(self, **fields: Column) -> None:
        self.fields = fields

    def write(self, file: BytesIO, values: Iterable[Any]) -> None:
        rows = list(values)
        for at, column in enumerate(self.fields.values()):
            column.write(file, map(itemgetter(at), rows))

    def read(self, file: BytesIO) -> Any:
        return zip(*[column.read(file) for column in self.fields.values()], strict=True)


class Fields(TupleColumn):
    """Objects of a class. An object that was read has no other attributes than these."""

    def __init__(self, cls: type, **fields: Column) -> None:
        super().__init__(**fields)
        self.cls = cls

    def write(self, file: BytesIO, values: Iterable[Any]) -> None:
        super().write(file, ([getattr(each, name) for name in self.fields] for each in values))

    def read(self, file: BytesIO) -> Any:
        return [self._made(dict(zip(self.fields, row, strict=True))) for row in super().read(file)]

    def _made(self, values: dict[str, Any]) -> Any:
        if is_dataclass(self.cls):
            return self.cls(**values)
        made: Any = object.__new__(self.cls)
        vars(made).update(values)
        return made


class Many:
    """Collections: the size of each, then the values of all, one after another."""

    def __init__(self, items: Column, listed: Callable[[Any], Any], made: Callable[[Any], Any]) -> None:
        self.items, self.listed, self.made = items, listed, made

    def write(self, file: BytesIO, values: Iterable[Any]) -> None:
        found = list(map(self.listed, values))
        LONG.write(file, map(len, found))
        self.items.write(file, chain.from_iterable(found))

    def read(self, file: BytesIO) -> Any:
        counts, items = LONG.read(file), iter(self.items.read(file))
        return [self.made(islice(items, count)) for count in counts]


def _map(keys: Column, values: Column) -> Many:
    return Many(TupleColumn(keys=keys, values=values), dict.items, dict)


def _keys(keys: Column) -> Many:
    """Dictionaries whose values are None: sets in an order."""
    return Many(keys, list, dict.fromkeys)


def _optional(value: Column) -> Many:
    return Many(value, lambda each: () if each is None else (each,), lambda found: next(found, None))


def _each(column: Column, names: str) -> dict[str, Column]:
    """Several fields of one kind."""
    return dict.fromkeys(names.split(), column)


# -- what is stored ----------------------------------------------------------------------------------------------------

LONG, TEXT, BOOL, BYTES = Plain("long"), Plain("string"), Plain("boolean"), Plain("bytes")
MAYBE_LONG, MAYBE_TEXT = Plain("null", "long"), Plain("null", "string")
_VALUE = Plain("null", "boolean", "long", "double", "string", "bytes")  # of an argument
_NUMBERS, _COUNTS, _IDS = _map(LONG, LONG), _map(TEXT, LONG), _keys(LONG)
_QUEUE, _CHANNEL = TupleColumn(vhost=TEXT, name=TEXT), TupleColumn(session=LONG, number=LONG)
_IDENTITY = TupleColumn(kind=TEXT, value=BYTES)
_ARGUMENT = Fields(Argument, name=TEXT, type=TEXT, value=_VALUE)
_POLICY = Fields(Policy, name=TEXT, definition=TEXT, version=LONG)
_BEHIND = Fields(Behind, **_each(LONG, "final first end odd"))

_LEVELS = Fields(
    Levels,
    highest=MAYBE_LONG,
    default=LONG,
    returned_first=BOOL,
    **_each(_NUMBERS, "level_of counts"),
    ready=_IDS,
    back=_IDS,
)
_IDENTITIES = Fields(
    Identities,
    since=LONG,
    inside=_map(_IDENTITY, TupleColumn(message=LONG, until_ms=LONG)),
    through=_map(TEXT, _map(_IDENTITY, TupleColumn(message=LONG, until_ms=LONG, number=LONG))),
    **_each(_COUNTS, "counts sizes sure_from"),
)
_ACCOUNT = Fields(
    Account,
    key=_QUEUE,
    **_each(_NUMBERS, "sizes out expires returned counted acquired waiting published last_first"),
    **_each(LONG, "declared_ms bytes_ready bytes_out bytes_waiting last_cut crashed since relocated_at"),
    **_each(BOOL, "quorum stream later delays single_active once paused"),
    flagged=_IDS,
    counters=_COUNTS,
    letters=_map(TupleColumn(vhost=TEXT, queue=TEXT, queue_id=LONG, partition=LONG, relocated=BOOL), LONG),
    restored=_map(TupleColumn(restore=TEXT, vhost=TEXT, queue=TEXT, queue_id=LONG), Many(LONG, sorted, set)),
    arguments=Many(_ARGUMENT, list, tuple),
    policies=TupleColumn(policy=_optional(_POLICY), operator_policy=_optional(_POLICY)),
    levels=_LEVELS,
    identities=_optional(_IDENTITIES),
)
_PREFETCHES = Fields(
    Prefetches,
    **_each(_NUMBERS, "own lookaheads holding"),
    queues=_map(LONG, _QUEUE),
    channels=_map(_CHANNEL, _map(LONG, BOOL)),
    limits=_map(_CHANNEL, LONG),
    limited=_map(LONG, _CHANNEL),
)
_CONSUMER = TupleColumn(queue=_QUEUE, session=LONG, channel=LONG, no_ack=BOOL, priority=LONG)
_ATTACHED = Fields(
    Attached,
    consumers=_map(LONG, _CONSUMER),
    active=_map(_QUEUE, LONG),
    challenged=_keys(_QUEUE),
    used=_map(LONG, _keys(_QUEUE)),
)
_FINDING = TupleColumn(check=TEXT, queue=MAYBE_TEXT, message_id=MAYBE_LONG)
PRODUCT = Fields(
    AuditProduct,
    **_each(LONG, "offset now_ms ahead_ms least_ms events quarantined first_quarantined"),
    **_each(_COUNTS, "failures unlisted"),
    accounts=Many(_ACCOUNT, dict.values, lambda accounts: {each.key: each for each in accounts}),
    prefetches=_PREFETCHES,
    attached=_ATTACHED,
    letters=_NUMBERS,
    claims=Fields(Claims, **_each(LONG, "count held_at passed_by"), claimants=_keys(TEXT), asked=_map(LONG, TEXT)),
    words=Fields(CleanStops, **_each(LONG, "count final odd"), found=Many(_BEHIND, list, list)),
    lost=_IDS,
    policies=_map(TupleColumn(vhost=TEXT, policy=_POLICY), LONG),
    told=Many(_FINDING, partial(sorted, key=repr), set),
)


@dataclass(frozen=True, slots=True)
class StoredAudit:
    """An audit at an offset, with the digest and the head of the machine there.

    `under_way`: of the LetterRows, in a ledger. `pieces`: meta and chunks of each queue, in the file of a watch."""

    digest: str
    head: bytes
    beliefs: AuditProduct
    under_way: dict[tuple[int, int], int]
    pieces: list[tuple[bytes, dict[int, bytes]]]


STORED = Fields(
    StoredAudit,
    digest=TEXT,
    head=BYTES,
    beliefs=PRODUCT,
    under_way=_map(TupleColumn(queue_id=LONG, message_id=LONG), LONG),
    pieces=Many(TupleColumn(meta=BYTES, chunks=_map(LONG, BYTES)), list, list),
)


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
        account.limits = account.read_limits()
        product.account_of[queue] = account
    return product


# -- files ------------------------------------------------------------------------------------------------------------


def packed(stored: StoredAudit) -> bytes:
    """Return the content of a file.

    Raises LogError for a number of more than 64 bits."""
    try:
        avro = _avro(STORED, stored)
    except OverflowError as error:
        raise LogError(f"the history has times or sizes that no broker writes: {error}") from None
    return _HEADER + hashlib.sha256(avro).digest() + avro


def unpacked(path: Path) -> StoredAudit:
    """Return the content of a file.

    Raises OSError, and LogError for a file that is damaged or of another format."""
    content = path.read_bytes()
    if not content.startswith(_HEADER):
        found = _OTHER.match(content)
        why = "not a file of an audit" if found is None else other_format(int(found[1]), FORMAT)
        raise LogError(f"{path}: {why}; begin again with another directory")
    file = BytesIO(content)
    file.seek(len(_HEADER))
    if file.read(_DIGEST_BYTES) != hashlib.sha256(file.read()).digest():
        raise LogError(f"{path}: damaged; begin again with another directory")
    file.seek(len(_HEADER) + _DIGEST_BYTES)
    try:
        [stored] = STORED.read(file)
    except Exception as error:  # it was forged: fastavro and the columns fail in many ways
        raise LogError(f"{path}: damaged: {type(error).__name__}: {error}") from None
    return stored  # type: ignore[no-any-return]


def differences(one: StoredAudit, other: StoredAudit) -> list[str]:
    """Return the fields in which they differ."""
    fields = STORED.fields.items()
    return [name for name, each in fields if _avro(each, getattr(one, name)) != _avro(each, getattr(other, name))]


def _avro(column: Column, value: Any) -> bytes:
    file = BytesIO()
    column.write(file, [value])
    return file.getvalue()
