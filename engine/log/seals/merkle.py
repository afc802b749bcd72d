"""Merkle trees over records, as in Certificate Transparency (RFC 9162, section 2.1).

One hash stands for all records, and a short proof shows that a record is among them.

    leaf = SHA-256(0x00 || record)          node = SHA-256(0x01 || left || right)

The left part of a tree has as many leaves as the largest power of two that leaves some for the right part.
"""

import hashlib
from collections.abc import Sequence


def leaf_hash(record: bytes) -> bytes:
    """The hash of a record's leaf."""
    return hashlib.sha256(b"\x00" + record).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class Tree:
    """Computes the root of leaves that come one by one, in memory of a few hashes."""

    def __init__(self) -> None:
        self.size = 0
        self._whole: list[bytes] = []  # roots of perfect trees, the largest first: one for each bit of `size`

    def add(self, leaf: bytes) -> None:
        """Add the next leaf."""
        size = self.size
        while size & 1:
            leaf = _node(self._whole.pop(), leaf)
            size >>= 1
        self._whole.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """The root over all leaves so far."""
        if not self._whole:
            return hashlib.sha256(b"").digest()
        *rest, found = self._whole
        for left in reversed(rest):
            found = _node(left, found)
        return found


def proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes that lead from leaf number `index` to the root, the lowest first."""
    if len(leaves) == 1:
        return []
    left = 1 << (len(leaves) - 1).bit_length() - 1
    if index < left:
        return [*proof(leaves[:left], index), _root(leaves[left:])]
    return [*proof(leaves[left:], index - left), _root(leaves[:left])]


def root_of(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root to which a proof leads.

    Raises ValueError when the proof cannot be one of a tree of this size."""
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf number {index}")
    found, at, last = leaf, index, size - 1
    for other in path:
        if last == 0:
            raise ValueError("the proof is too long")
        if at & 1 or at == last:
            found = _node(other, found)
            while not at & 1 and at:
                at >>= 1
                last >>= 1
        else:
            found = _node(found, other)
        at >>= 1
        last >>= 1
    if last:
        raise ValueError("the proof is too short")
    return found


def _root(leaves: Sequence[bytes]) -> bytes:
    tree = Tree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()
