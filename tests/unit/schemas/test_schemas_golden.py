"""Every record ever written stays readable: today's code reads the golden samples of every released schema."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import EVENT_TYPES
from rewindmq.schemas.registry import RELEASED, envelope_fingerprint
from rewindmq.schemas.single_object import unwrap
from tests.support.samples import GOLDEN, SAMPLES, readable_envelope, sample_bytes

GOLDEN_FILES = sorted(GOLDEN.glob("*/*.bin"))


@pytest.mark.parametrize("file", GOLDEN_FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_golden_sample_says_what_it_always_said(file: Path) -> None:
    said = json.loads(file.with_suffix(".json").read_text("utf-8"))
    record = unwrap(file.read_bytes())
    assert_says(said, readable_envelope(*Decoder().decode(record)))


def assert_says(said: Any, says: Any) -> None:
    """Equal, but for fields that were added since."""
    if isinstance(said, dict):
        for name, value in said.items():
            assert_says(value, says[name])
    elif isinstance(said, list):
        assert len(said) == len(says)
        for one, other in zip(said, says, strict=True):
            assert_says(one, other)
    else:
        assert (type(said), said) == (type(says), says)


@pytest.mark.parametrize("name", SAMPLES)
def test_todays_samples_are_golden_byte_for_byte(name: str) -> None:
    file = GOLDEN / envelope_fingerprint() / f"{name}.bin"
    assert file.exists(), "the schema was released without samples: python -m tests.support.samples"
    assert file.read_bytes() == sample_bytes(name)
    assert json.loads(file.with_suffix(".json").read_text("utf-8")) == readable_envelope(*SAMPLES[name])


def test_every_event_class_has_a_sample_under_its_name() -> None:
    for cls in EVENT_TYPES:
        assert type(SAMPLES[cls.__name__][2]) is cls
    assert {type(event) for _, _, event in SAMPLES.values()} == set(EVENT_TYPES)


def test_every_released_schema_has_golden_samples_and_no_other() -> None:
    released = {Path(file.name).stem for file in RELEASED.iterdir() if file.name.endswith(".avsc")}
    assert {file.parent.name for file in GOLDEN_FILES} == released
