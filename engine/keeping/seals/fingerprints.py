"""Locates changes, by comparing four bytes of each record's keyed hash, in order, with the sealed ones.

    sealed   a b c d e f          found   a b d e f g          -> c was dropped: offset 2

These prints prove nothing (the Merkle root does) but locate a change, for 4 bytes a record. Records are compared only
by their bytes, so a record that moved is recognised. The key is the seal's (commitments.py).
"""

WIDTH = 4
_SURE = 8 * WIDTH  # this many bytes of equal prints in a row, or all remaining ones, are not a coincidence


def located(sealed: bytes, found: bytes, base: int, nothing: bytes) -> tuple[int, str]:
    """Return the first offset at which the prints differ, and a text that names the apparent change.

    `base`: the offset of the first record. `sealed` and `found` have a print for each record. The prints differ, or
    records with equal prints do. `nothing`: the print of an offset without a record."""
    first = next((at for at in range(0, len(sealed), WIDTH) if sealed[at : at + WIDTH] != found[at : at + WIDTH]), None)
    if first is None:
        return base, f"from offset {base} to {base + len(sealed) // WIDTH - 1} something differs from the sealed one"
    offset = base + first // WIDTH
    return offset, _what(sealed, found, first, base, nothing)


def _what(sealed: bytes, found: bytes, first: int, base: int, nothing: bytes) -> str:
    offset = base + first // WIDTH
    if len(sealed) == len(found):
        others = [at for at in range(first, len(sealed), WIDTH) if sealed[at : at + WIDTH] != found[at : at + WIDTH]]
        if len(others) <= 2:
            return _changed(sealed, found, others, base, nothing)
    rest = found[first : first + _SURE]
    if rest and (moved := _aligned(sealed, rest, first)):
        return f"{_records(moved)} dropped at offset {offset}: later records are {moved} before their place"
    wanted = sealed[first : first + _SURE]
    if len(wanted) > WIDTH and (moved := _aligned(found, wanted, first)):
        return f"{_records(moved)} put in at offset {offset}: later records are {moved} after their place"
    if not rest:
        return f"the log ends at offset {offset}, and was sealed up to offset {base + len(sealed) // WIDTH - 1}"
    if found[first : first + WIDTH] == nothing:
        return f"the record at offset {offset} is gone, and so are later ones"
    return f"the record at offset {offset} is not the one that was sealed, nor are later ones"


def _changed(sealed: bytes, found: bytes, others: list[int], base: int, nothing: bytes) -> str:
    """Return a text for one or two changed records."""
    there, sealed_there = ([prints[at : at + WIDTH] for at in others] for prints in (found, sealed))
    offsets = " and ".join(str(base + at // WIDTH) for at in others)
    if len(others) == 2 and there == sealed_there[::-1]:
        return f"the records at offsets {offsets} were swapped"
    if all(each == nothing for each in there):
        return f"nothing is left at offset {offsets}"
    return f"the record at offset {offsets} is not as it was sealed"


def _aligned(prints: bytes, wanted: bytes, behind: int) -> int:
    """Return the number of records from `behind` to the next match of the prints `wanted`; 0 if there is none."""
    at = prints.find(wanted, behind + 1)
    while at >= 0 and at % WIDTH:
        at = prints.find(wanted, at + 1)
    return (at - behind) // WIDTH if at >= 0 else 0


def _records(count: int) -> str:
    return "a record was" if count == 1 else f"{count} records were"
