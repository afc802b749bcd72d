"""Types of the JSON that commands print and no other interface has. outputs.py says which command prints which."""

from typing import Annotated, Literal, NotRequired, TypedDict

Time = Annotated[str, "ISO 8601 in UTC, with milliseconds"]
Nothing = Literal[""]  # as rabbitmqctl prints a missing value

Setting = TypedDict(
    "Setting",
    {
        "name": str,
        "value": Annotated[str, "As text; empty: the setting has none. Of a secret the path of its file"],
        "from": Annotated[str, "Where the value comes from"],
    },
)


class ArchiveLine(TypedDict):
    """The progress of a partition's archive. A field is empty if it is unknown or was not requested."""

    partition: str
    floor: Annotated[int | Nothing, "The oldest offset; what was below it was trimmed"]
    archived_end: Annotated[int, "The offset behind the newest archived record"]
    archived_until: Annotated[str, "The time of the newest archived record"]
    segments: int
    snapshots: int
    bytes: Annotated[int, "Size of the segments as they were"]
    archived_bytes: Annotated[int, "Size of the objects that hold segments and snapshots"]
    lag: Annotated[int | Nothing, "Records that are not archived"]
    lag_bytes: Annotated[int | Nothing, "Size of their segments"]
    waiting_since: Annotated[str, "The time of the oldest of them"]
    kafka_start: Annotated[int | Nothing, "The offset at which Kafka begins"]
    lost: Annotated[int | Nothing, "Offsets that Kafka removed before they were archived"]


class EventLine(TypedDict):
    """A record of the log, and with --effects its effects."""

    partition: str
    offset: int
    time: Time
    user: Annotated[str, "Empty: the broker itself"]
    session: Annotated[int, "0: none"]
    why: NotRequired[Annotated[str, "The reason that the user gave"]]
    event: Annotated[str | None, "Its type; null: the record cannot be decoded"]
    fields: NotRequired[dict[str, object]]
    problem: NotRequired[Annotated[str, "Why the record cannot be decoded"]]
    effects: NotRequired[list[dict[str, object]]]


class Cosigner(TypedDict):
    """A witness that cosigned a note."""

    name: str
    seconds: Annotated[int, "When, in seconds since 1970"]


class RegisterEntry(TypedDict):
    """The place of a seal in a register."""

    origin: Annotated[str, "The name of the register"]
    entry: Annotated[int, "The number of the seal"]
    size: Annotated[int, "Number of seals that the note covers"]
    witnesses: list[Cosigner]
    time_stamp: Annotated[str | None, "The time by a time-stamp authority"]
    time_stamp_is_checked: bool


class CheckedProof(TypedDict):
    """A proof that holds: the record, its event, and when it was sealed."""

    partition: str
    offset: int
    sealed: Time
    seal: Annotated[str, "SHA-256 of the seal"]
    register: NotRequired[RegisterEntry]
    time: NotRequired[Time]
    user: NotRequired[str]
    session: NotRequired[int]
    why: NotRequired[Annotated[str, "The reason that the user gave"]]
    event: Annotated[str | None, "Its type; null: no event, or one that this version cannot read"]
    fields: NotRequired[dict[str, object]]
    body: NotRequired[str]
    body_encoding: NotRequired[Literal["utf-8", "base64"]]
    withheld: NotRequired[
        Annotated[list[int], "Sizes of the fields that the proof has commitments to, and does not show"]
    ]
    record: NotRequired[Annotated[str, "Bytes that this version cannot read, in hexadecimal digits"]]
