"""The role of a data directory: a broker's own, a follower's copy, or a leader's that another node has replaced.

    DIR/follower.json    of a copy: its leader and its identity. `rewindmq promote` removes the file
    DIR/fenced.json      a follower of this broker was promoted, and continues the history
    DIR/followers.json   of a leader: {"format": 1, "followers": {name: identity of the copy}}
    DIR/aside/...        records that are not in the continued history (cut_back.py)

A broker does not start on either of the first two.
"""

import os
from pathlib import Path
from typing import Any

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.whole_file import write_whole
from rewindmq.projections import system_calls
from rewindmq.schemas.formats import formatted, values_in

FOLLOWER, FENCED, FOLLOWERS = "follower.json", "fenced.json", "followers.json"


def require_broker(data_dir: Path) -> None:
    """Check that a broker may write here.

    Raises LogError."""
    note = read_note(data_dir / FOLLOWER)
    if note is not None:
        raise LogError(
            f"{data_dir}: a copy that follows {note.get('leader')}: run `rewindmq promote --data {data_dir}` to make it"
            " the leader, or `rewindmq follow` to continue copying"
        )
    note = read_note(data_dir / FENCED)
    if note is not None:
        raise LogError(f"{data_dir}: {fence_text(note)}")


def fence_text(note: dict[str, Any]) -> str:
    """Return one line about a fence."""
    return (
        f"a follower of this broker was promoted ({note.get('promoted')}), and the history continues there: run"
        " `rewindmq follow URL --data DIR` to make this broker its follower, which sets aside the records that only"
        " this broker has"
    )


def read_note(path: Path) -> dict[str, Any] | None:
    """Return the content of a note; None if it does not exist.

    Raises LogError."""
    try:
        return values_in(path.read_bytes(), path, LogError)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise LogError(f"{path}: damaged, or not written by RewindMQ") from None


def noted_followers(data_dir: Path) -> dict[str, str]:
    """Return the followers of a leader, with the identity of each copy.

    Raises LogError."""
    path = data_dir / FOLLOWERS
    note = read_note(path)
    try:
        return {} if note is None else {str(name): str(copy) for name, copy in note["followers"].items()}
    except (KeyError, AttributeError):
        raise LogError(f"{path}: damaged, or not written by RewindMQ") from None


def write_note(path: Path, content: dict[str, Any]) -> None:
    """Write a note, durably.

    Raises OSError."""
    write_whole(path, formatted(content).encode() + b"\n", os.replace)
    system_calls.sync_directory(path.parent)


def remove_note(path: Path) -> None:
    """Remove a note, durably.

    Raises OSError."""
    path.unlink(missing_ok=True)
    system_calls.sync_directory(path.parent)
