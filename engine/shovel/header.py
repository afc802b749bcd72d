"""Adds `x-shovelled` to the properties of a message, as RabbitMQ's shovel plugin does with add-forward-headers.

The header is an array. Each shovel puts a table before those that are there (rabbit_shovel_util.erl `update_headers/5`,
rabbit_basic.erl `prepend_table_header/3`). All other properties and headers stay byte for byte.
"""

from collections.abc import Mapping
from typing import Final

from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Malformed
from rewindmq.schemas.amqp.properties import HEADERS, MAX_PROPERTIES_BYTES, join, join_headers, split, split_headers

SHOVELLED: Final = "x-shovelled"


def with_shovelled(properties: bytes, entry: Mapping[str, object]) -> bytes:
    """Return the properties with `entry` as the first table of x-shovelled.

    Properties that are damaged, or that would not fit into a frame then, come back as they are."""
    try:
        fields = split(properties)
        headers = split_headers(fields)
        before = headers.pop(SHOVELLED, None)
        items = [b"F" + tables.with_length(tables.encode(entry))]
        if before is not None:
            # of an array, the values; anything else becomes one value of the array
            items.append(before[5:] if before[:1] == b"A" else before)
        fields[HEADERS] = join_headers({SHOVELLED: tables.array(items), **headers})
        changed = join(fields)
    except Malformed:
        return properties
    return changed if len(changed) <= MAX_PROPERTIES_BYTES else properties
