"""The end of the last block of a partition, where a follower continues its copy, and its JSON form for the disk and
for the exchange between two machines."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class End(NamedTuple):
    """The end of the last block, at byte `position` of the segment that begins at offset `base`.

    `offset`: of the next record. `chain`: the hash chain up to here. Position 0: the segment's header is missing, and
    `chain` is the one in its header. An empty last segment does not count, because its broker may remake it with
    another sync marker."""

    base: int
    position: int
    offset: int
    chain: bytes


def ends_out(ends: Mapping[str, End]) -> dict[str, list[object]]:
    """Return ends as JSON."""
    return {name: [end.base, end.position, end.offset, end.chain.hex()] for name, end in ends.items()}


def ends_in(content: Mapping[str, Any]) -> dict[str, End]:
    """Parse ends from JSON. Raises ValueError, TypeError, AttributeError for other JSON."""
    return {
        str(name): End(int(base), int(position), int(offset), bytes.fromhex(chain))
        for name, (base, position, offset, chain) in content.items()
    }


def chains_out(places: Mapping[str, tuple[int, bytes]]) -> dict[str, dict[str, object]]:
    """Return offset and hash chain by partition, as JSON."""
    return {name: {"offset": offset, "chain": chain.hex()} for name, (offset, chain) in places.items()}


def chains_in(content: Mapping[str, Any]) -> dict[str, tuple[int, bytes]]:
    """Parse offset and hash chain by partition from JSON. Raises KeyError, and as `ends_in`."""
    return {str(name): (int(each["offset"]), bytes.fromhex(each["chain"])) for name, each in content.items()}
