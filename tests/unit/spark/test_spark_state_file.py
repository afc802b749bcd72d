"""The files in which a watch keeps its audit: what they may hold, and what earlier versions wrote into them."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest

from rewindmq.schemas.values import Argument, Policy
from rewindmq.spark_replay.audit.state_file import FORMAT, unpacked

ARGUMENT, POLICY = Argument("x-max-length", "long", 10), Policy("p", "{}", 3)


def written(path: Path, packed: bytes) -> Path:
    path.write_bytes(hashlib.sha256(packed).digest() + packed)
    return path


def packed(value: Any) -> bytes:
    return pickle.dumps({"format": FORMAT, "beliefs": value}, protocol=5)


def test_a_file_of_an_earlier_version_names_the_module_where_its_classes_were(tmp_path: Path) -> None:
    today = packed([ARGUMENT, POLICY])
    earlier = today.replace(b"rewindmq.schemas.values", b"rewindmq.schemas.events")
    assert earlier != today
    for content in (today, earlier):
        assert unpacked(written(tmp_path / "a.audit", content))["beliefs"] == [ARGUMENT, POLICY]


def test_other_classes_are_not_unpickled(tmp_path: Path) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is no part of an audit's state"):
        unpacked(written(tmp_path / "a.audit", packed([Path("x")])))
