"""The version of each stored form, and the one line with which a reader refuses another one.

A stored form says its version where its reader looks first (docs/formats.md): JSON in its first field, `"format": 1`;
an Avro container file in the metadata of its header; other files in their first bytes, whose last one is a digit.
"""

FORMAT = "format"


def other_format(place: object, found: object, ours: object) -> str:
    """The text of a refusal. `place`: the file; `found`: the version there; `ours`: the one that this program reads."""
    return f"{place}: format {found}, this program reads format {ours}"


def other_magic(place: object, found: bytes, ours: bytes) -> str | None:
    """The text of a refusal where a file begins as ours, but for the digit of the version; else None."""
    if found[: len(ours)] == ours or not found.startswith(ours[:-1]) or not found[len(ours) - 1 : len(ours)].isdigit():
        return None
    return other_format(place, chr(found[len(ours) - 1]), chr(ours[-1]))
