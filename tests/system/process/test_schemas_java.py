"""Another Avro implementation (Apache's, in Java, as it comes with Spark) reads our container files and agrees on the
schema, its fingerprint, and every byte of every sample."""

import subprocess
from pathlib import Path

import pyspark
import pytest

from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.writer import PartitionWriter
from tests.support.needs import needed
from tests.support.samples import SAMPLES, sample_record

NEEDED = ("avro-1", "jackson-", "slf4j-api", "commons-compress", "commons-io")


@pytest.mark.java
def test_java_reads_a_container_file_and_writes_the_same_single_objects(tmp_path: Path) -> None:
    records = [sample_record(name) for name in SAMPLES]
    directory = tmp_path / "queues-0"
    directory.mkdir()
    writer = PartitionWriter(directory, 1 << 30, begin=True)  # with the checks of its blocks, that no tool may see
    writer.write(records[:1], 0)
    writer.write(records[1:], 0)
    writer.close()
    [file] = segment_files(directory)
    jars = [str(jar) for jar in (Path(pyspark.__file__).parent / "jars").iterdir() if jar.name.startswith(NEEDED)]
    program = Path(__file__).with_name("ReadHistory.java")
    command = [needed("java"), "-XX:TieredStopAtLevel=1", "-cp", ":".join(jars), str(program), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = [
        f"{'Explained' if actor.reason else type(event).__name__} {timestamp_ms} {sample_record(name).hex()}"
        for name, (timestamp_ms, actor, event) in SAMPLES.items()
    ]
    assert done.stdout.splitlines() == expected
