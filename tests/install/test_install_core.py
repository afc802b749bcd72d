"""`pip install rewindmq`: the broker and the command line, without Spark and without a Kafka client."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.installed import SECONDS, Environment, InstalledBroker, clean
from tests.support.pika_clients import numbered, publish_confirmed

HEAVY = (
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "confluent_kafka",
    "obstore",
    "openlineage",
    "google.protobuf",
    "pika",
)
OF_EXTRAS = (  # everything else is imported without an extra
    "rewindmq.spark",
    "rewindmq.testing",  # for pytest
    "rewindmq.spark_replay",
    "rewindmq.engine.log.kafka",
    "rewindmq.engine.keeping.seals.in_topic",
    "rewindmq.engine.keeping.archive.topic_archiver",
    "rewindmq.engine.keeping.archive.topic_recovery",
    "rewindmq.engine.keeping.archive.topic_records",
    "rewindmq.engine.keeping.archive.topic_seals",
    "rewindmq.engine.keeping.topic_source",
    "rewindmq.engine.keeping.topic_space",
    "rewindmq.engine.keeping.in_topics",
    "rewindmq.engine.keeping.retention",
    "rewindmq.engine.shovel.link",
    "rewindmq.engine.shovel.session",
    "rewindmq.engine.shovel.shovel",
)


def failed(done: "subprocess.CompletedProcess[str]", code: int, line: str) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{line}\n")


def test_a_broker_runs_and_its_history_is_read(core: Environment, tmp_path: Path) -> None:
    broker = InstalledBroker(core, tmp_path / "data")
    try:
        publish_confirmed(broker, "orders", numbered(range(3), "order %d"))
        url = ("--url", broker.http_url)
        listed = core.run("rewindmq", "list_queues", "--silent", "name", "messages", *url, cwd=tmp_path)
        assert (listed.stdout, listed.stderr) == ("orders\t3\n", "")
        assert "\nBuild: pure\n" in core.run("rewindmq", "status", *url, cwd=tmp_path).stdout
        members = core.run("rewindmq", "add_member", "orders", "one", *url, cwd=tmp_path)
        assert members.returncode != 70, members.stderr
    finally:
        assert broker.stop() == 0, "".join(broker.errors)
    assert "Traceback" not in "".join(broker.errors)
    read = core.run("rewindmq", "verify", "--data", str(broker.data), cwd=tmp_path)
    assert (read.returncode, read.stderr) == (0, "")


def test_every_module_is_imported_without_an_extra(core: Environment, tmp_path: Path) -> None:
    program = (
        "import importlib, json, pkgutil, sys, rewindmq\n"
        f"skipped = {OF_EXTRAS!r}\n"
        "found = pkgutil.walk_packages(rewindmq.__path__, 'rewindmq.', onerror=lambda _: None)\n"
        "names = [each.name for each in found if not each.name.startswith(skipped)]\n"
        "[importlib.import_module(name) for name in names if not name.endswith('__main__')]\n"
        "print(json.dumps([len(names), sorted(sys.modules)]))"
    )
    done = core.run("python", "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    count, modules = json.loads(done.stdout)
    assert count > 200
    assert [name for name in HEAVY if name in modules] == []


def test_a_broker_with_a_log_of_its_own_loads_no_kafka_client(tmp_path: Path) -> None:
    """Also where the client is installed: it would take memory and time."""
    program = (
        "import json, sys, rewindmq.__main__, rewindmq.engine.process, rewindmq.engine.http.app\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=SECONDS)
    modules = json.loads(done.stdout)
    assert "rewindmq.engine.cluster.start" in modules
    assert [name for name in (*HEAVY, "rewindmq.engine.log.kafka", "rewindmq.spark_replay") if name in modules] == []


@pytest.mark.parametrize(
    "command",
    [
        ("start", "--kafka", "127.0.0.1:1", "--data", "data"),
        ("rewind", "orders", "--at", "2026-11-21T00:00:00Z", "--kafka", "127.0.0.1:1"),
        ("verify", "--kafka", "127.0.0.1:1", "--data", "data"),
    ],
)
def test_a_kafka_needs_its_extra_and_one_line_says_so(
    core: Environment, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "data").mkdir(0o750)
    done = core.run("rewindmq", *command, cwd=tmp_path)
    program = "rewindmq" if command[0] == "start" else "Error"
    line = "a log in Kafka needs confluent-kafka, not installed here: pip install 'rewindmq[kafka]'"
    failed(done, 69, f"{program}: {line}")


def test_an_archive_needs_its_extra_and_one_line_says_so(core: Environment, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(0o750)
    for command in (("archive", "--data", "data", "--to", "archive"), ("archive_status", "--archive", "s3://a/b")):
        line = "an archive needs obstore, not installed here: pip install 'rewindmq[archive]'"
        failed(core.run("rewindmq", *command, cwd=tmp_path), 69, f"Error: {line}")


def test_sparks_commands_need_their_extra_and_one_line_says_so(core: Environment, tmp_path: Path) -> None:
    for arguments in (("audit", "--data", "data"), ("--help",), ()):
        done = core.run("rewindmq", "spark", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1)
        assert done.stderr.endswith("not installed here: pip install 'rewindmq[spark]'\n")
    assert "Spark" in core.run("rewindmq", "help", cwd=tmp_path).stdout


def test_sparks_door_is_shut_and_breaks_nothing_without_the_extra(core: Environment, tmp_path: Path) -> None:
    done = core.run("python", "-c", "import pyspark_rewindmq as m; print(hasattr(m, 'DefaultSource'))", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.slow
def test_pip_installs_what_it_takes(wheel: Path, tmp_path: Path) -> None:
    """From the registry, in the versions that pip takes. Prints how much that is (pytest -s)."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=SECONDS)
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True, env=clean(), timeout=SECONDS
    )
    [site] = (tmp_path / "venv" / "lib").glob("python3.*/site-packages")
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and "pip" not in path.parts)
    print(f"site-packages of the core: {size / 1e6:.0f} MB")
    assert size < 200_000_000
    core = Environment.__new__(Environment)
    core.bin, core.python, core.site = python.parent, python, site
    test_a_broker_runs_and_its_history_is_read(core, tmp_path)
