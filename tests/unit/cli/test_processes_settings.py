"""`--processes`: what it goes with, and what a worker has of the configuration."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rewindmq.engine.cli.configuration.assembly import config_of
from rewindmq.engine.cli.configuration.commands import start
from rewindmq.engine.cli.configuration.sources import Sources
from rewindmq.engine.config import ArchiveConfig, Config
from rewindmq.engine.processes.worker import WORKER, Order, taken_from_environment, worker_config
from rewindmq.engine.runtime.watermarks import Limit


@pytest.mark.parametrize(
    "flags",
    [
        ("--kafka", "localhost:9092"),
        ("--read-only",),
        ("--keep-bodies", "30d"),
        ("--find-index", "1d"),
        ("--confirm-after", "follower"),
    ],
)
def test_what_needs_one_process_is_refused_in_one_line(tmp_path: Path, flags: tuple[str, ...]) -> None:
    result = CliRunner().invoke(start, ["--data", str(tmp_path / "data"), "--processes", "2", *flags])
    assert result.exit_code == click.UsageError.exit_code
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error")]
    assert flags[0] in line
    assert "--processes" in line
    assert not (tmp_path / "data").exists()


def test_standbys_need_several_processes_or_kafka(tmp_path: Path) -> None:
    result = CliRunner().invoke(start, ["--data", str(tmp_path), "--standbys", "1"])
    assert "--standbys needs --kafka or --processes" in result.output
    given = {"REWINDMQ_DATA": str(tmp_path), "REWINDMQ_PROCESSES": "2", "REWINDMQ_STANDBYS": "1"}
    assert config_of(Sources({}, given, None).values()).standbys == 1


def test_an_archive_goes_with_several_processes(tmp_path: Path) -> None:
    given = {"REWINDMQ_DATA": str(tmp_path), "REWINDMQ_PROCESSES": "2", "REWINDMQ_ARCHIVE": "/archive"}
    config = config_of(Sources({}, given | {"REWINDMQ_KEEP_LOCAL": "7d"}, None).values())
    assert config.archive == ArchiveConfig("/archive", 3_600_000, 60_000, "7d")
    first, second = (worker_config(config, Order(number, 7, 2, tmp_path)) for number in (1, 2))
    assert first.archive == second.archive == config.archive, "each worker shows how the archive does"
    assert not first.archives_topics, "no worker reads Kafka's records in it"
    assert (config.speaks_for_log, first.speaks_for_log, second.speaks_for_log) == (True, True, False)


def test_a_worker_has_a_name_a_directory_ports_and_a_share_of_the_memory(tmp_path: Path) -> None:
    config = Config(tmp_path, processes=4, prometheus_port=15692, partitions=8)
    worker = worker_config(config, Order(3, 7, 4, tmp_path))
    assert worker.node == "rewindmq-3@localhost"
    assert worker.cluster_name == "rewindmq@localhost"
    assert (worker.data, worker.log_directory) == (tmp_path / "processes" / "3", tmp_path)
    assert (worker.amqp_port, worker.http_port, worker.https_port, worker.prometheus_port) == (5672, 15674, None, 15694)
    assert worker.vm_memory_high_watermark == Limit(0.1)
    assert worker.keys_directory == tmp_path / "keys"
    assert (worker.standbys, worker.partitions) == (0, None)
    sized = worker_config(
        Config(tmp_path, vm_memory_high_watermark=Limit(absolute=5_000_000)), Order(1, 7, 4, tmp_path)
    )
    assert sized.vm_memory_high_watermark == Limit(absolute=5_000_000)


def test_the_processes_of_a_worker_are_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(2, 9, 4, Path("/a directory/of data"))
    monkeypatch.setenv(WORKER, str(order))
    assert taken_from_environment() == order
    assert taken_from_environment() is None
