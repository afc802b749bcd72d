"""The table of keys: every setting that a policy or an argument can give a queue or an exchange.

    a key                 its name in a policy                      `max-length`
    its argument          x- and the name, when a queue is declared `x-max-length`

The table gives for each key its legal values, its users, and how an argument and a policy merge. Its readers:

    merge                           settings.py
    values of policies              projections/rules/policy_rules.py
    values of arguments             projections/rules/queue_arguments.py
    the queues of a policy          projections/topology/policies.py
    refusals, and equality          engine/broker/declarations.py
    refusals before an upgrade      engine/upgrades/since_version.py

The audit (spark_replay/audit/limits.py) deliberately states the same again from docs/behaviours/, so that it can
convict this table. docs/development/add-a-policy-key.md explains how to add a row.

Names, values and texts are those of RabbitMQ 3.13 (rabbit_policies.erl; rabbit_amqqueue.erl `declare_args/0`;
`capabilities/0` of each queue type; S-013, S-162). Fields with `4_3` follow RabbitMQ 4.3, and x-message-deduplication
and x-cache-* its plugin rabbitmq-message-deduplication. Keys of mirrored queues (`ha-*`, `queue-master-locator`) are
accepted, so that the definitions of a RabbitMQ 3 can be imported. They have no effect, because a queue's content is in
the log, and the log has the copies.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Literal, TypeGuard, get_args

from rewindmq.projections.machine.data.id_windows import LONGEST_TTL_MS, MOST_REMEMBERED
from rewindmq.projections.machine.rules.legal_values import (
    ANY,
    FLAG,
    NUMBER,
    TEXT,
    Age,
    Choice,
    Masks,
    Number,
    NumberInPolicy,
    Values,
)
from rewindmq.projections.machine.rules.profile import RABBITMQ_4_3
from rewindmq.projections.machine.rules.versions import UNROUTED
from rewindmq.schemas.amqp.properties import MAX_EXPIRY_MS

QueueType = Literal["classic", "quorum", "stream", "delayed"]
Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
Retry = Literal["all", "failed", "returned"]

QUEUE_TYPES: Final[tuple[QueueType, ...]] = get_args(QueueType)
DECLARABLE_TYPES: Final[tuple[QueueType, ...]] = ("classic", "quorum", "stream")  # by clients
OVERFLOWS: Final[tuple[Overflow, ...]] = get_args(Overflow)
RETRIES: Final[tuple[Retry, ...]] = get_args(Retry)
MAX_SEGMENT_BYTES: Final = 3_000_000_000

Types = tuple[QueueType, ...]
CLASSIC: Final[Types] = ("classic",)
QUORUM: Final[Types] = ("quorum",)
STREAM: Final[Types] = ("stream",)
BOTH: Final[Types] = ("classic", "quorum")
NOT_CLASSIC: Final[Types] = ("quorum", "stream")
NOT_QUORUM: Final[Types] = ("classic", "stream")


class Precedence(Enum):
    """The choice between the values of an argument and of the effective policy."""

    SMALLER = auto()
    POLICY = auto()
    ARGUMENT = auto()


SMALLER, POLICY, ARGUMENT = Precedence.SMALLER, Precedence.POLICY, Precedence.ARGUMENT


@dataclass(frozen=True, slots=True)
class Key:
    """A row of the table.

    policy        the words of "... is not a valid {policy}". None: no policy may have the key
    operator      an operator policy may have it
    queues        the types whose queues take the argument
    foreign       the types to whose queues a policy with this key never applies
    merge         by queue type: which value holds, where an argument and a policy both give one
    setting       the field of `QueueSettings` with the value (settings.py), where it has another name than the key
    decides       False: the key is taken, as RabbitMQ takes it, and nothing follows from it
    policy_4_3    only profile rabbitmq-4.3 has the policy key
    argument_4_3  only profile rabbitmq-4.3 has the argument
    values_4_3    the legal values in profile rabbitmq-4.3, if they differ
    quorum_after  the equality of quorum queues compares the argument after that of this key, as RabbitMQ does
    since         the machine version under which a queue must have been declared (versions.py)"""

    name: str
    values: Values
    policy: str | None = None
    operator: bool = False
    queues: Types = ()
    foreign: Types = ()
    merge: dict[QueueType, Precedence] = field(default_factory=dict)
    setting: str = ""
    decides: bool = True
    policy_4_3: bool = False
    argument_4_3: bool = False
    values_4_3: Values | None = None
    quorum_after: str = ""
    since: int = 1

    @property
    def argument(self) -> str:
        """Return the argument's name."""
        return self.name if self.name.startswith("x-") else f"x-{self.name}"

    @property
    def setting_name(self) -> str:
        """The field of `QueueSettings` that has the value."""
        return self.setting or self.name.replace("-", "_")

    def values_in(self, semantics: str) -> Values:
        """Return the legal values in the profile of this name."""
        return self.values if self.values_4_3 is None or semantics != RABBITMQ_4_3.name else self.values_4_3

    def allowed_in_policy(self, operator: bool, semantics: str) -> bool:
        """Return True if a policy, or an operator policy, may have the key under the profile."""
        allowed = self.operator if operator else self.policy is not None
        return allowed and (not self.policy_4_3 or semantics == RABBITMQ_4_3.name)

    def has_argument(self, semantics: str) -> bool:
        """Return True if queues of some type have the argument under the profile."""
        return bool(self.queues) and (not self.argument_4_3 or semantics == RABBITMQ_4_3.name)

    def takes_argument(self, queue_type: str, semantics: str) -> bool:
        """Return True if queues of the type and profile have the argument."""
        return queue_type in self.queues and self.has_argument(semantics)


DEDUPLICATES: Final = "x-message-deduplication"  # of an argument and of a policy's key, in the plugin of RabbitMQ

# In the order of declare_args/0, in which RabbitMQ checks the arguments of a declaration.
KEYS: Final = (
    Key(
        "expires",
        Number(1, argument_least=1, argument_most=MAX_EXPIRY_MS),
        "queue expiry",
        operator=True,
        queues=BOTH,
        foreign=STREAM,
        merge={"classic": SMALLER, "quorum": POLICY},  # 4.3: the smaller (Profile.smaller_expires)
        setting="expires_ms",
        quorum_after="dead-letter-strategy",
    ),
    Key(
        "message-ttl",
        Number(argument_most=MAX_EXPIRY_MS),
        "message TTL",
        operator=True,
        queues=BOTH,
        foreign=STREAM,
        merge={"classic": SMALLER, "quorum": SMALLER},
        setting="message_ttl_ms",
        quorum_after="delivery-limit",
    ),
    Key(
        "dead-letter-exchange",
        TEXT,
        "dead letter exchange name",
        queues=BOTH,
        foreign=STREAM,
        merge={"classic": ARGUMENT, "quorum": ARGUMENT},
    ),
    Key(
        "dead-letter-routing-key",
        TEXT,
        "dead letter routing key",
        queues=BOTH,
        foreign=STREAM,
        merge={"classic": ARGUMENT, "quorum": ARGUMENT},
    ),
    Key(
        "dead-letter-strategy",
        Choice("invalid_dlx_strategy", "at-most-once", "at-least-once"),
        "dead letter strategy",
        queues=QUORUM,
        foreign=NOT_QUORUM,
        merge={"quorum": ARGUMENT},
        setting="at_least_once",
    ),
    Key(
        "max-length",
        NUMBER,
        "maximum length",
        operator=True,
        queues=BOTH,
        foreign=STREAM,
        merge={"classic": SMALLER, "quorum": SMALLER},
    ),
    Key(
        "max-length-bytes",
        NUMBER,
        "maximum length in bytes",
        operator=True,
        queues=DECLARABLE_TYPES,
        merge={"classic": SMALLER, "quorum": SMALLER, "stream": POLICY},
    ),
    Key(
        "max-in-memory-length",
        NUMBER,
        "maximum memory in bytes",
        operator=True,
        queues=QUORUM,
        foreign=NOT_QUORUM,
        decides=False,
    ),
    Key(
        "max-in-memory-bytes",
        NUMBER,
        "maximum memory in bytes",
        operator=True,
        queues=QUORUM,
        foreign=NOT_QUORUM,
        decides=False,
    ),
    Key("max-priority", Number(argument_most=255, too_large="max_value_exceeded"), queues=CLASSIC, foreign=NOT_CLASSIC),
    Key(
        "overflow",
        Choice("invalid_overflow", *OVERFLOWS),
        "overflow value",
        operator=True,
        queues=BOTH,
        foreign=STREAM,
        merge={"classic": ARGUMENT, "quorum": POLICY},
    ),
    Key(
        "queue-mode",
        Choice("\"unsupported queue mode 'VALUE'\"", "default", "lazy"),
        "queue-mode value",
        queues=CLASSIC,
        foreign=NOT_CLASSIC,
        decides=False,
    ),
    Key(
        "queue-version",
        Choice("\"unsupported queue version 'VALUE'\"", 1, 2),
        "queue-version value",
        operator=True,
        queues=CLASSIC,
        decides=False,
    ),
    Key("single-active-consumer", FLAG, queues=BOTH, foreign=NOT_CLASSIC),
    Key("queue-type", ANY, queues=DECLARABLE_TYPES),  # engine/broker/declarations.py checks it first
    Key(
        "queue-master-locator",
        Choice(None, "min-masters", "client-local", "random"),
        "queue master locator value",
        queues=CLASSIC,
        foreign=NOT_CLASSIC,
        decides=False,
    ),
    Key(
        DEDUPLICATES,
        FLAG,
        "x-message-deduplication: it must be a boolean",
        queues=BOTH,
        merge={"classic": POLICY, "quorum": POLICY},
        setting="deduplicates",
        quorum_after="queue-leader-locator",
    ),
    Key(
        "delayed-retry-type",
        Choice(None, *RETRIES, "disabled"),
        "delayed retry type. Must be one of: all, failed, returned, disabled",
        operator=True,
        queues=QUORUM,
        merge={"quorum": POLICY},
        setting="retry",
        policy_4_3=True,
        argument_4_3=True,
    ),
    Key(
        "delayed-retry-min",
        NumberInPolicy(1),
        "delayed retry minimum delay. Must be a positive integer",
        operator=True,
        queues=QUORUM,
        merge={"quorum": SMALLER},  # an operator's value is a lower bound (settings.py)
        setting="retry_min_ms",
        policy_4_3=True,
        argument_4_3=True,
    ),
    Key(
        "delayed-retry-max",
        NumberInPolicy(1),
        "delayed retry maximum delay. Must be a positive integer",
        operator=True,
        queues=QUORUM,
        merge={"quorum": SMALLER},
        setting="retry_max_ms",
        policy_4_3=True,
        argument_4_3=True,
    ),
    Key(
        "consumer-timeout",  # has no effect in a fold (engine/amqp/consumer_timeout.py)
        NUMBER,
        "consumer timeout",
        queues=QUORUM,
        merge={"classic": SMALLER, "quorum": SMALLER, "stream": SMALLER},
        setting="consumer_timeout_ms",
        argument_4_3=True,
    ),
    Key("consumer-disconnected-timeout", NUMBER, queues=QUORUM, decides=False, argument_4_3=True),
    Key("quorum-initial-group-size", Number(argument_least=1), queues=QUORUM, decides=False),
    Key(
        "delivery-limit",
        NUMBER,
        "delivery limit",
        operator=True,
        queues=QUORUM,
        foreign=NOT_QUORUM,
        merge={"quorum": SMALLER},
        values_4_3=NumberInPolicy(None),  # a negative one means none
    ),
    Key(
        "max-age",
        Age(),
        "max age",
        queues=STREAM,
        foreign=BOTH,
        merge={"stream": POLICY},
        setting="max_age_ms",
    ),
    Key(
        "stream-max-segment-size-bytes",
        Number(most=MAX_SEGMENT_BYTES),
        "segment size",
        queues=STREAM,
        foreign=BOTH,
        decides=False,
    ),
    Key("initial-cluster-size", Number(argument_least=1), "cluster size", queues=STREAM, foreign=BOTH, decides=False),
    Key(
        "queue-leader-locator",
        Choice("invalid_queue_locator_arg", "client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
        queues=NOT_CLASSIC,
        foreign=CLASSIC,
        decides=False,
    ),
    # Of no argument
    Key("stream-filter-size-bytes", Number(16, 255), "filter size. Valid range is 16-255", decides=False),
    Key("target-group-size", ANY, foreign=NOT_QUORUM, decides=False),
    Key("alternate-exchange", TEXT, "alternate exchange name"),
    Key("unrouted", Choice(None, "keep", "count"), "unrouted: it must be either keep or count", since=UNROUTED),
    Key(
        "mask",  # has no effect in a fold (engine/rewind/masks.py)
        Masks(),
        'mask: it must be a list such as ["header.token", "$.card", "$"]',
        operator=True,
        decides=False,
        since=UNROUTED,
    ),
    Key("x-cache-size", Number(1, MOST_REMEMBERED), f"x-cache-size: it must be an integer from 1 to {MOST_REMEMBERED}"),
    Key("x-cache-ttl", Number(1, LONGEST_TTL_MS), "x-cache-ttl: it must be an integer greater than 0"),
    Key(
        "x-cache-persistence",
        Choice(None, "disk", "memory"),
        "x-cache-persistence: it must be either disk or memory",
        decides=False,
    ),
    # Of mirrored queues
    Key("ha-mode", Choice(None, "all", "exactly", "nodes"), "ha-mode value", foreign=NOT_CLASSIC, decides=False),
    Key("ha-params", ANY, "", foreign=NOT_CLASSIC, decides=False),  # the mode says which (policy_rules.py)
    Key("ha-sync-mode", Choice(None, "manual", "automatic"), "ha-sync-mode value", foreign=NOT_CLASSIC, decides=False),
    Key("ha-sync-batch-size", Number(1), "ha-sync-batch-size value", decides=False),
    Key(
        "ha-promote-on-shutdown",
        Choice(None, "always", "when-synced"),
        "ha-promote-on-shutdown value",
        foreign=NOT_CLASSIC,
        decides=False,
    ),
    Key(
        "ha-promote-on-failure",
        Choice(None, "always", "when-synced"),
        "ha-promote-on-failure value",
        foreign=NOT_CLASSIC,
        decides=False,
    ),
)
BY_NAME: Final = {key.name: key for key in KEYS}
BY_ARGUMENT: Final = {key.argument: key for key in KEYS if key.queues}


def is_queue_type(text: str) -> TypeGuard[QueueType]:
    """Return True if the text names a type of queue."""
    return text in QUEUE_TYPES


def arguments_of(queue_type: str, semantics: str) -> list[str]:
    """Return the arguments of queues of this type and profile, in the order in which equality is checked
    (`capabilities/0` of each type; those of 4.3 come last)."""
    taken = [key for key in KEYS if key.takes_argument(queue_type, semantics)]
    taken.sort(key=lambda key: key.argument_4_3)
    if queue_type == "quorum":
        for key in [key for key in taken if key.quorum_after]:
            taken.remove(key)
            taken.insert(taken.index(BY_NAME[key.quorum_after]) + 1, key)
    return [key.argument for key in taken]


def since(name: str) -> int:
    """Return the machine version with which a key or an argument arrived; 1 for a name that no row has."""
    key = BY_ARGUMENT.get(name) or BY_NAME.get(name)
    return 1 if key is None else key.since
