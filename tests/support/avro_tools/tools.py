"""Avro's own tools for tests: their jar, fetched once into tests/support/avro_tools/target."""

import fcntl
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.needs import needed

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"


def records_as_json(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of an Avro container file, as `avro-tools tojson` prints them."""
    command = [needed("java"), "-jar", str(_jar()), "tojson", str(path)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        yield json.loads(line)


def _jar() -> Path:
    wanted, ready = (HERE / "pom.xml").read_text(), TARGET / "ready"
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "lock").open("w") as lock:  # several test runs may begin at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (ready.exists() and ready.read_text() == wanted):
            subprocess.run([needed("mvn"), "-B", "-q", "-f", str(HERE / "pom.xml"), "package"], check=True, timeout=240)
            ready.write_text(wanted)
    [jar] = (TARGET / "lib").glob("avro-tools-*.jar")
    return jar
