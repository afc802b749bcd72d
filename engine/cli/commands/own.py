"""Our own commands that ask the broker one thing: marks, erasures, followers, the clock."""

from typing import cast

from rewindmq.engine.cli.columns import Item, fields
from rewindmq.engine.cli.exits import UNAVAILABLE
from rewindmq.engine.cli.rows import Row, commands, ends, on, says
from rewindmq.engine.cli.usage import option
from rewindmq.engine.cli.values import Value, json_line


def positions(item: Item) -> str:
    """Return the offsets of a mark, by partition."""
    return json_line(cast(dict[str, Value], item["positions"]))


def holders(item: Item) -> str:
    """Return the queues that hold a day of bodies back."""
    held = cast(list[Item], item["queues"])
    return ", ".join(f"{queue['vhost']} {queue['queue']}: {queue['messages']}" for queue in held)


MARKS = commands(
    Row(
        "set_mark NAME",
        "Give this moment a name.\n\nAll commands take mark:NAME for a time.",
        'Setting mark "{name}" ...',
        "PUT marks/{name}",
        body="note",
        params=(option("--note", "A text that is stored with the mark.", default=""),),
        examples=(
            'rewindmq set_mark before-the-release --note "release 4.2"',
            "rewindmq rewind orders --at mark:before-the-release",
        ),
    ),
    Row(
        "list_marks",
        "List the moments that have names.",
        "Listing marks ...",
        "GET marks",
        fields("name time user note") | {"positions": positions},
    ),
    Row(
        "clear_mark NAME",
        "Remove the name of a moment. The history stays.",
        'Clearing mark "{name}" ...',
        "DELETE marks/{name}",
        refused=on(404, UNAVAILABLE, 'There is no mark "{name}"'),
    ),
)
ERASURES = commands(
    Row(
        "erase_subject SUBJECT",
        "Destroy the keys of SUBJECT, so that nobody can read its bodies.",
        'Erasing subject "{subject}" ...',
        "DELETE subjects/{subject}?reason",
        refused=on(404, UNAVAILABLE),
        examples=('rewindmq erase_subject customer-4711 --reason "letter of 22 November"',),
    ),
    Row(
        "list_erasures",
        "List the erased subjects, with time, user, reason and keys.",
        "Listing erasures ...",
        "GET erasures",
        fields("subject key_ids time user reason offset"),
    ),
    Row(
        "list_expired_bodies",
        "List the days of --keep-bodies: kept, due, held back by queues, or expired.\n\n"
        "Ask the node that owns the partition queues-0: only that one knows of days that have not expired.",
        "Listing the days of bodies ...",
        "GET expired-bodies",
        fields("day state keys time offset") | {"queues": holders},
    ),
)
CLOCK = commands(
    Row(
        "repair_clock",
        "Set the time in the log to the wall clock of the broker's machine.\n\n"
        "Messages in queues keep their remaining time to live.",
        "Setting the time in the log to the wall clock ...",
        "POST clock/repair",
        then=says("from {before} to {after}"),
    )
)
FOLLOWERS = commands(
    Row(
        "list_followers",
        "List the machines that follow this broker, and how far they are behind.",
        "Listing followers ...",
        "GET followers",
        fields("name connected lag_records lag_seconds confirms address"),
    ),
    Row(
        "forget_follower NAME",
        "Forget a follower that is gone for good: confirms wait for it no longer.\n\n"
        "Never forget one that may have been promoted: this broker could confirm again, and two would lead.",
        "",
        "DELETE followers/{name}",
        then=ends("Follower '{name}' is forgotten."),
    ),
)
