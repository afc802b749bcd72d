"""Merkle trees over records, as in Certificate Transparency (RFC 9162, section 2.1).

One hash stands for all records, and a short proof shows that a record is among them.

    leaf = SHA-256(0x00 || record)          node = SHA-256(0x01 || left || right)

The left part of a tree has as many leaves as the largest power of two that leaves some for the right part.
proof_verifier.py has the hashes, and checks a proof.
"""

import hashlib
from collections.abc import Sequence

from rewindmq.engine.keeping.seals.proof_verifier import node_hash


class Tree:
    """Computes the root of leaves that come one by one, in memory of a few hashes."""

    def __init__(self) -> None:
        self.size = 0
        self._whole: list[bytes] = []  # roots of perfect trees, the largest first: one for each bit of `size`

    def add(self, leaf: bytes) -> None:
        """Add the next leaf."""
        size = self.size
        while size & 1:
            leaf = node_hash(self._whole.pop(), leaf)
            size >>= 1
        self._whole.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """The root over all leaves so far."""
        if not self._whole:
            return hashlib.sha256(b"").digest()
        *rest, found = self._whole
        for left in reversed(rest):
            found = node_hash(left, found)
        return found


def proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes that lead from leaf number `index` to the root, the lowest first."""
    if len(leaves) == 1:
        return []
    left = 1 << (len(leaves) - 1).bit_length() - 1
    if index < left:
        return [*proof(leaves[:left], index), root(leaves[left:])]
    return [*proof(leaves[left:], index - left), root(leaves[:left])]


def consistency(leaves: Sequence[bytes], size: int) -> list[bytes]:
    """The hashes that show that the tree of the first `size` leaves is the beginning of the whole tree.

    RFC 6962, section 2.1.2. `size` 0: nothing has to be shown."""
    return _consistency(leaves, size, True) if size else []


def _consistency(leaves: Sequence[bytes], size: int, whole: bool) -> list[bytes]:
    """`whole`: the reader knows the root of these first leaves already."""
    if size == len(leaves):
        return [] if whole else [root(leaves)]
    left = 1 << (len(leaves) - 1).bit_length() - 1
    if size <= left:
        return [*_consistency(leaves[:left], size, whole), root(leaves[left:])]
    return [*_consistency(leaves[left:], size - left, False), root(leaves[:left])]


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over these leaves."""
    tree = Tree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()
