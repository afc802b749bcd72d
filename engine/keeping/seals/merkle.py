"""Merkle trees over records, as in Certificate Transparency (RFC 9162, section 2.1).

One hash covers all records, and a short proof shows that a record is among them.

    leaf = SHA-256(0x00 || record)          node = SHA-256(0x01 || left || right)

The number of leaves in the left part of a tree is the largest power of two that leaves some for the right part.
proof_verifier.py has the hashes, and checks a proof.
"""

import hashlib
from collections.abc import Sequence

from rewindmq.engine.keeping.seals.proof_verifier import node_hash


class Tree:
    """The tree of leaves that are added one by one, in memory of a few hashes."""

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
        """Return the root over all leaves so far."""
        if not self._whole:
            return hashlib.sha256(b"").digest()
        *rest, found = self._whole
        for left in reversed(rest):
            found = node_hash(left, found)
        return found


def proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the hashes that lead from leaf number `index` to the root, the lowest first."""
    if len(leaves) == 1:
        return []
    left = 1 << (len(leaves) - 1).bit_length() - 1
    if index < left:
        return [*proof(leaves[:left], index), root(leaves[left:])]
    return [*proof(leaves[left:], index - left), root(leaves[:left])]


def consistency(leaves: Sequence[bytes], size: int) -> list[bytes]:
    """Return the hashes that show that the tree of the first `size` leaves is the beginning of the whole tree.

    RFC 6962, section 2.1.2. `size` 0: nothing needs proof."""
    return _consistency(leaves, size, True) if size else []


def _consistency(leaves: Sequence[bytes], size: int, whole: bool) -> list[bytes]:
    """Return the hashes. `whole`: the reader already knows the root of these first leaves."""
    if size == len(leaves):
        return [] if whole else [root(leaves)]
    left = 1 << (len(leaves) - 1).bit_length() - 1
    if size <= left:
        return [*_consistency(leaves[:left], size, whole), root(leaves[left:])]
    return [*_consistency(leaves[left:], size - left, False), root(leaves[:left])]


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over these leaves."""
    tree = Tree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()
