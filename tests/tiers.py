"""Which tests the tiers run; no other place says so.

--tier quick     what `make check` and `make test` run: not LONG, nor what asks an S3 server, nor most seeds; few
                 examples of each property
--tier rest      what quick left out, and whole what quick shortens: properties, and tests that ask `rounds`
--tier all       everything (the default)

Which tests run on the compiled build (rewindmq/builds.py), and which only there:

--build compiled    all but OF_OTHERS; fails at once where the pure build runs
"""

import inspect
import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import is_hypothesis_test

from rewindmq.builds import COMPILED
from tests.support.examples import rounds

TIERS = ("quick", "rest", "all")
SEEDS = 20  # of each kind of simulated history, in the quick tier

# Node ids below tests/, as fnmatch patterns. Chosen by durations in two processes on two busy cores: a test that takes
# more than some eight seconds, or a file that starts a Kafka or a RabbitMQ of its own and has a cheaper sibling.
LONG = (
    "examples/test_examples.py::test_a_service_publishes_and_consumes_and_the_log_is_folded_and_audited",
    "install/test_install_spark.py::*",
    "simulation/test_simulation_planted.py::*",
    "simulation/test_simulation_nodes_planted.py::*",
    "simulation/*::test_the_histories_meet_everything",
    "simulation/test_simulation_archive.py::test_a_planted_defect_is_found*",
    "simulation/test_simulation_clocks.py::test_histories_under_a_wrong_clock",
    "system/archive/test_archive_beside.py::test_kills_of_both_*",
    "system/archive/test_archive_beside.py::test_what_is_archived_leaves_the_disk*",
    "system/archive/test_archive_beside.py::test_a_store_that_is_away_and_comes_back",
    "system/archive/test_archive_keep_local.py::test_spark_reads_through*",
    "system/archive/test_archive_commands.py::test_a_kill_at_any_moment_and_several_at_once*",
    "system/archive/test_archive_trim_kills.py::*",
    "system/clients/test_clients_celery_canvas.py::*",
    "system/clients/test_clients_celery.py::test_tasks_for_later_do_not_keep_one_for_now_waiting",
    "system/clients/test_clients_definitions.py::*",
    "system/compose/test_compose_stack.py::*",
    "system/demo/*",
    "system/desk/*",
    "system/durability/test_durability_keep_history.py::*",
    "system/durability/test_durability_kills.py::*",
    "system/durability/test_durability_memory.py::test_bodies_that_never_end_are_bounded",
    "system/durability/test_durability_no_room.py::test_descriptors_*",
    "system/engine/test_broker_process.py::test_a_history_of_a_newer_version_*",
    "system/http/test_http_shapes.py::*",
    "system/kafka/test_kafka_archive.py::test_a_recovery_*",
    "system/kafka/test_kafka_archive.py::test_a_store_that_fails_at_any_call_loses_nothing*",
    "system/kafka/test_kafka_archive.py::test_a_kafka_is_lost_and_nodes_go_on_from_the_archive",
    "system/kafka/test_kafka_archive_beside.py::*",
    "system/kafka/test_kafka_bench.py::*",
    "system/kafka/test_kafka_clients.py::*",
    "system/kafka/test_kafka_cluster.py::*",
    "system/kafka/test_kafka_copy_state.py::*",
    "system/kafka/test_kafka_day_expiry.py::*",
    "system/kafka/test_kafka_faults.py::*",
    "system/kafka/test_kafka_floor.py::*",
    "system/kafka/test_kafka_grown.py::*",
    "system/kafka/test_kafka_log.py::test_a_node_whose_topics_were_deleted_fails",
    "system/kafka/test_kafka_nodes_ending.py::*",
    "system/kafka/test_kafka_operating.py::*",
    "system/kafka/test_kafka_past.py::*",
    "system/kafka/test_kafka_restore.py::*",
    "system/kafka/test_kafka_space.py::*",
    "system/kafka/test_kafka_state.py::*",
    "system/kafka/test_kafka_trouble.py::*",
    "system/process/test_bench.py::test_throughput_and_many_queues_fill_the_table",
    "system/spark/test_spark_answers.py::*",
    "system/spark/test_spark_archive.py::*",
    "system/spark/test_spark_archive_kafka.py::*",
    "system/spark/test_spark_bench.py::*",
    "system/spark/test_spark_chunks.py::*",
    "system/spark/test_spark_cluster.py::*",
    "system/spark/test_spark_kafka.py::*",
    "system/spark/test_spark_kafka_settings.py::*",
    "system/spark/test_spark_keep_local.py::*",
    "system/spark/test_spark_kept_history.py::*",
    "system/spark/test_spark_ledgers.py::*",
    "system/spark/test_spark_ledgers_kafka.py::*",
    "system/spark/test_spark_lineage.py::*",
    "system/spark/test_spark_source_kafka.py::*",
    "system/spark/test_spark_source_stream.py::*",
    "system/spark/test_spark_watch.py::*",
    "unit/engine/test_broker_histories.py::test_a_random_history[[][3-9]]",
    "unit/engine/test_broker_histories.py::test_a_random_history[[]1[01]]",
    "unit/engine/test_importing.py::test_any_document",
    "unit/log/test_log_time_set_back.py::test_a_moment_is_found_in_the_last_stretch_that_had_it[[]lost[12]-1]",
    "unit/machine/test_machine_histories.py::test_as_the_naive_model[[][4-9]]",
    "unit/machine/test_machine_histories.py::test_as_the_naive_model[[]1[01]]",
    "unit/machine/test_machine_histories.py::test_as_the_naive_model_with_small_chunks[[]1[6-9]]",
    "unit/machine/test_machine_histories.py::test_as_the_naive_model_with_small_chunks[[]2?]",
    "unit/machine/test_machine_histories.py::test_digest_does_not_depend_on_the_way[[]10[123]]",
)
# What `--build compiled` leaves out: tests that start a Kafka or Spark.
OF_OTHERS = (
    "install/test_install_spark.py::*",
    "system/compose/test_compose_stack.py::*",
    "system/demo/*",
    "system/kafka/*",
    "system/spark/*",
)
# Tests of the compiled build itself. Where the pure build runs they are left out, and `make test-compiled` runs them.
OF_COMPILED = ("builds/*",)
SEED = re.compile(r"tests/simulation/.*\[(\d+)\]$")


def is_long(nodeid: str) -> bool:
    """The quick tier leaves it out."""
    seed = SEED.match(nodeid)
    if seed is not None and int(seed[1]) % 1_000 >= SEEDS:
        return True
    return any(fnmatchcase(nodeid, f"tests/{pattern}") for pattern in LONG)


def asks_s3(item: pytest.Item) -> bool:
    """It starts the S3 server, which Go builds in two minutes on a fresh machine: so the quick tier leaves it out."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "s3" in getattr(item, "fixturenames", ()) or parameters.get("place") == "s3"


def suits(nodeid: str, build: str, asked: str) -> bool:
    """Whether a test runs on the build that runs now. `asked`: the value of --build, or empty."""
    if asked and any(fnmatchcase(nodeid, f"tests/{pattern}") for pattern in OF_OTHERS):
        return False
    return build == COMPILED or not any(fnmatchcase(nodeid, f"tests/{pattern}") for pattern in OF_COMPILED)


def is_shortened(item: pytest.Item) -> bool:
    """The quick tier tries it less often (tests/support/examples.py)."""
    function = getattr(item, "function", None)
    if function is None:
        return False
    return is_hypothesis_test(function) or rounds.__name__ in inspect.unwrap(function).__code__.co_names


def belongs(item: pytest.Item, tier: str) -> bool:
    """Whether a tier runs a test."""
    if tier == "all":
        return True
    if tier == "rest" and is_shortened(item):
        return True
    return (is_long(item.nodeid) or asks_s3(item)) == (tier == "rest")
