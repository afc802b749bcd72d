"""Another Avro implementation (Apache's, in Java, as it comes with Spark) reads our container files and agrees on the
schema, its fingerprint, and every byte of every sample."""

import json
import subprocess
from pathlib import Path

import fastavro
import pyspark
import pytest

from schemas.registry import envelope_schema_json
from schemas.single_object import unwrap
from tests.schemas.samples import SAMPLES, sample_bytes

NEEDED = ("avro-1", "jackson-", "slf4j-api", "commons-compress", "commons-io")


@pytest.mark.java
def test_java_reads_a_container_file_and_writes_the_same_single_objects(tmp_path: Path) -> None:
    file = tmp_path / "history.avro"
    sync = b"rewindmq-history"
    records = [unwrap(sample_bytes(name)) for name in SAMPLES]
    with file.open("wb") as out:  # header by fastavro, one block of our own records behind it
        fastavro.writer(out, json.loads(envelope_schema_json()), [], codec="null", sync_marker=sync)
        for record in records:
            out.write(varint(1) + varint(len(record)) + record + sync)
    jars = [str(jar) for jar in (Path(pyspark.__file__).parent / "jars").iterdir() if jar.name.startswith(NEEDED)]
    program = Path(__file__).with_name("ReadHistory.java")
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", ":".join(jars), str(program), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = [
        f"{type(event).__name__} {timestamp_ms} {sample_bytes(name).hex()}"
        for name, (timestamp_ms, _, event) in SAMPLES.items()
    ]
    assert done.stdout.splitlines() == expected


def varint(value: int) -> bytes:
    """A length below 8,192 as an Avro long."""
    return bytes([value * 2]) if value < 64 else bytes([value * 2 & 0x7F | 0x80, value * 2 >> 7])
