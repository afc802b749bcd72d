"""Profiles: the RabbitMQ version that a queue follows, chosen for ever when it is declared.

They differ in these points (docs/behaviours/profiles.md):

                                     rabbitmq-3.13          rabbitmq-4.3
    quorum queues
      the delivery count is raised   by every return        by failures: reject, and a holder that is gone; not by nack,
                                                            recover, a timeout or the loss of a node (S-100)
      default delivery limit         none                   20, and -1 is none (S-160)
      given back, without a limit    behind all others      before them, as with one (S-095)
      priorities                     none                   32 levels, strict; 4 without a priority (S-105, S-108)
      delayed retry                  none                   x-delayed-retry-type, -min and -max
      expires, argument and policy   the policy's           the smaller
      single active consumer         stays active           gives way to a higher priority when it holds nothing (S-110)
      a delivery unacked too long    closes its channel     is given back, and its consumer cancelled

Classic queues and streams are the same in both, except that their deliveries have no timeout in the second.
`QueueDeclared.semantics` names the profile. An unknown name means the first profile (another program may have written
the log). All code that differs by profile asks this object, so that a history can be folded under the other one.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Profile:
    """The choices in which RabbitMQ versions differ.

    `quorum_levels`: priorities of a quorum queue, 0 for none. `failures_count`: a quorum queue's delivery count is the
    count of its failures; how often a message was acquired is counted besides. `returns_behind`: without a delivery
    limit a returned message goes behind all ready messages (S-095)."""

    name: str
    failures_count: bool
    delivery_limit: int | None
    returns_behind: bool
    quorum_levels: int
    default_level: int
    delayed_retry: bool
    smaller_expires: bool
    gives_way: bool  # the single active consumer
    overdue_returns: bool  # (engine/amqp/consumer_timeout.py: a fold does not use it)


RABBITMQ_3_13: Final = Profile(
    "rabbitmq-3.13",
    failures_count=False,
    delivery_limit=None,
    returns_behind=True,
    quorum_levels=0,
    default_level=0,
    delayed_retry=False,
    smaller_expires=False,
    gives_way=False,
    overdue_returns=False,
)
RABBITMQ_4_3: Final = Profile(
    "rabbitmq-4.3",
    failures_count=True,
    delivery_limit=20,
    returns_behind=False,
    quorum_levels=32,
    default_level=4,
    delayed_retry=True,
    smaller_expires=True,
    gives_way=True,
    overdue_returns=True,
)
PROFILES: Final = {profile.name: profile for profile in (RABBITMQ_3_13, RABBITMQ_4_3)}

# The reasons why a quorum queue's message returns that count as failures (rabbit_channel.erl settle; rabbit_fifo.erl:
# `down` for any reason but noconnection).
FAILURES: Final = ("reject", "session_closed", "channel_closed", "broker_started")


def profile_of(semantics: str) -> Profile:
    """Return the profile of this name; the first one for an unknown name."""
    return PROFILES.get(semantics, RABBITMQ_3_13)
