"""`DIR/log/archive.json`: which archive has the history of a data directory; of a node on Kafka `DIR/archive.json`.

    {"format": 1, "url": "s3://BUCKET/PREFIX"}      written when a run of an archiver has succeeded; no login is in it

Readers find by it the part of the history that is in the archive alone.
"""

import os
from pathlib import Path
from typing import Final

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.segments import sync_directory
from rewindmq.schemas.formats import formatted, values_in

NAME: Final = "archive.json"
NODE: Final = "kafka"  # a file of a node's directory, which has no log (engine/cluster/node.py)


def archive_of(data_dir: Path) -> str | None:
    """The URL of the archive of a data directory; None if nothing of it was archived.

    Raises LogError."""
    file = _note_in(data_dir)
    try:
        url = values_in(file.read_text(), file, LogError)["url"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        url = None
    if not isinstance(url, str):
        raise LogError(f"{file}: it does not name an archive")
    return url


def note_archive(data_dir: Path, url: str) -> None:
    """Write down, durably, which archive has the history. Does nothing where that is written already.

    Raises LogError: the disk refuses."""
    file = _note_in(data_dir)
    try:
        if archive_of(data_dir) == url:
            return
    except LogError:
        pass  # it is written anew
    new = file.with_name(f"{NAME}.{os.getpid()}.new")
    try:
        with new.open("w") as written:
            written.write(formatted({"url": url}) + "\n")
            written.flush()
            os.fsync(written.fileno())
        os.rename(new, file)
        sync_directory(file.parent)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise LogError(f"{file}: {error.strerror}") from None


def _note_in(data_dir: Path) -> Path:
    return data_dir / NAME if (data_dir / NODE).exists() else data_dir / "log" / NAME
