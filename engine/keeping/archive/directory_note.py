"""`DIR/log/archive.json` names the archive of a data directory's history; for a node on Kafka `DIR/archive.json`.

    {"format": 1, "url": "s3://BUCKET/PREFIX"}      written when a run of an archiver has succeeded; no login is in it

Readers use it to find history that is only in the archive.
"""

import os
from pathlib import Path
from typing import Final

from rewindmq.engine.log.contract import LogError
from rewindmq.projections import system_calls
from rewindmq.schemas.formats import formatted, values_in

NAME: Final = "archive.json"
NODE: Final = "kafka"  # a file in a node's directory, which has no log (engine/cluster/node.py)


def archive_of(data_dir: Path) -> str | None:
    """Return the URL of a data directory's archive; None if nothing of it was archived.

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
    """Note durably which archive has the history, unless that is already noted.

    Raises LogError if the disk refuses."""
    file = _note_in(data_dir)
    try:
        if archive_of(data_dir) == url:
            return
    except LogError:
        pass  # it is rewritten
    new = file.with_name(f"{NAME}.{os.getpid()}.new")
    try:
        with new.open("w") as written:
            written.write(formatted({"url": url}) + "\n")
            written.flush()
            system_calls.sync(written.fileno())
        os.rename(new, file)
        system_calls.sync_directory(file.parent)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise LogError(f"{file}: {error.strerror}") from None


def _note_in(data_dir: Path) -> Path:
    return data_dir / NAME if (data_dir / NODE).exists() else data_dir / "log" / NAME
