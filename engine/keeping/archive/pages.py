"""Pages of a manifest: many entries in one object, so that opening an archive takes only a few requests.

    PARTITION/pages/0000000000.json     entries 0 to 254, concatenated byte for byte; page 1 has 256 to 510 ...

- Entry 255 is on no page. It is read separately, and states the SHA-256 of entry 254, which states that of the previous
  one. So it proves its page; 511 proves the next one.
- A page adds nothing: if it is missing or wrong, its entries are read one by one.
- A page is created with its entries, or by the next run of an archiver. Its bytes depend only on the entries.
"""

import hashlib
import json
from typing import Final

ENTRIES: Final = 256  # of a page, with the entry that proves it
_DIGITS: Final = 10


def page_key(partition: str, number: int) -> str:
    """Return the key of a page."""
    return f"{partition}/pages/{number:0{_DIGITS}d}.json"


def proven_entries(page: bytes, known: int, before: str, proof: bytes) -> list[bytes] | None:
    """Return the entries of a page without its first `known` ones, as stored; None if they are not proven.

    `before`: the SHA-256 of the entry before them. `proof`: the entry after the page."""
    entries = page.splitlines(keepends=True)[known:]
    if not entries or _before(entries[0]) != before:
        return None
    following = [*entries[1:], proof]
    for entry, next_entry in zip(entries, following, strict=True):
        if _before(next_entry) != hashlib.sha256(entry).hexdigest():
            return None
    return entries


def _before(entry: bytes) -> object:
    """Return the SHA-256 that an entry states of the previous one; None if it states none."""
    try:
        values = json.loads(entry)
    except ValueError:
        return None
    return values.get("before") if isinstance(values, dict) else None
