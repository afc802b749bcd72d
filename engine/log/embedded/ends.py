"""The end of the last block of a partition: the place from which a follower copies on. Its form in JSON, for the disk
and for the way between two machines."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class End(NamedTuple):
    """The last block ends at byte `position` of the segment that begins at offset `base`.

    `offset`: of the next record. `chain`: the hash chain up to here. Position 0: the segment's header is not there, and
    `chain` is what its header states. An empty last segment does not count: its broker may make it again, with
    another sync marker."""

    base: int
    position: int
    offset: int
    chain: bytes


def ends_out(ends: Mapping[str, End]) -> dict[str, list[object]]:
    """Ends as JSON."""
    return {name: [end.base, end.position, end.offset, end.chain.hex()] for name, end in ends.items()}


def ends_in(content: Mapping[str, Any]) -> dict[str, End]:
    """Ends, from JSON. Raises ValueError, TypeError, AttributeError: it is no such JSON."""
    return {
        str(name): End(int(base), int(position), int(offset), bytes.fromhex(chain))
        for name, (base, position, offset, chain) in content.items()
    }


def chains_out(places: Mapping[str, tuple[int, bytes]]) -> dict[str, dict[str, object]]:
    """Offset and hash chain by partition, as JSON."""
    return {name: {"offset": offset, "chain": chain.hex()} for name, (offset, chain) in places.items()}


def chains_in(content: Mapping[str, Any]) -> dict[str, tuple[int, bytes]]:
    """Offset and hash chain by partition, from JSON. Raises KeyError, and as `ends_in`."""
    return {str(name): (int(each["offset"]), bytes.fromhex(each["chain"])) for name, each in content.items()}
