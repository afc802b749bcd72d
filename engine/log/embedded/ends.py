"""The end of the last block of a partition: the place from which a follower copies on."""

from typing import NamedTuple


class End(NamedTuple):
    """The last block ends at byte `position` of the segment that begins at offset `base`.

    `offset`: of the next record. `chain`: the hash chain up to here. Position 0: the segment's header is not there, and
    `chain` is what its header states. An empty last segment does not count: its broker may make it again, with
    another sync marker."""

    base: int
    position: int
    offset: int
    chain: bytes
