"""The model calculates the messages that N nodes carry from the costs of a message."""

import pytest

from tests.bench.bench_nodes import line_through
from tests.bench.node_model import Cluster, Costs, capacity, limits, other_folders

COSTS = Costs(
    both=10.0, append=3.0, consume=8.0, fold=5.0, kafka_write=8.0, kafka_read=1.0, idle=1000.0, beat=100.0, session=50.0
)
CORES, HOTTEST, KAFKA, METADATA = limits(COSTS, Cluster(1, None, 1))


@pytest.mark.parametrize(
    ("nodes", "standbys", "others"),
    [(1, None, 0.0), (8, None, 7.0), (1, 0, 0.0), (8, 0, 0.0), (1, 1, 0.0), (2, 1, 1.0), (4, 1, 1.5), (2, 5, 1.0)],
)
def test_nodes_that_fold_beside_the_owner(nodes: int, standbys: int | None, others: float) -> None:
    assert other_folders(nodes, standbys) == others


def test_nodes_that_fold_all_never_carry_more_than_one_can_fold() -> None:
    rates = [limits(COSTS, Cluster(nodes, None, nodes))[CORES] for nodes in (1, 2, 4, 8, 16)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx((1e6 - 1_100) / 10)
    assert rates[-1] < 1e6 / COSTS.fold


def test_nodes_that_fold_what_they_must_carry_nearly_as_many_times_more() -> None:
    one, eight = (limits(COSTS, Cluster(nodes, 0, 8))[CORES] for nodes in (1, 8))
    assert eight == pytest.approx(8 * one * (1e6 - 1_800) / (1e6 - 1_100))


def test_a_publisher_elsewhere_costs_two_nodes() -> None:
    assert limits(COSTS, Cluster(2, 0, 2, apart=1.0))[CORES] == pytest.approx(2 * (1e6 - 1_200) / 11)


def test_a_hot_partition_is_the_limit_of_its_owner() -> None:
    rate, full = capacity(COSTS, Cluster(16, 0, 32, hottest=0.25))
    assert rate == pytest.approx((1e6 - 2_600) / (0.25 * 10))
    assert full == HOTTEST


def test_kafka_is_the_limit_of_many_nodes() -> None:
    rate, full = capacity(COSTS, Cluster(64, 0, 128, kafka_cores=8))
    assert rate == pytest.approx(8e6 / (8.0 * 2 + 1.0))
    assert full == KAFKA


def test_clients_that_connect_for_each_message_fill_the_metadata_log() -> None:
    rate, full = capacity(COSTS, Cluster(16, 0, 32, sent_in_session=1))
    assert rate == pytest.approx((1e6 - 2_600) / 50)
    assert full == METADATA


def test_the_line_through_measured_points() -> None:
    assert line_through([(1, 9.0), (2, 10.0), (4, 12.0)]) == pytest.approx((8.0, 1.0))
    assert line_through([(1, 9.0), (4, 6.0)]) == pytest.approx((7.5, 0.0))
    assert line_through([(1, 9.0)]) == (9.0, 0.0)
