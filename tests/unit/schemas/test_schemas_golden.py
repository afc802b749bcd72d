"""Every record ever written stays readable: today's code reads the golden samples of every released schema."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import EVENT_TYPES
from rewindmq.schemas.registry import RELEASED, envelope_fingerprint
from tests.support.samples import GOLDEN, SAMPLES, golden, golden_record, readable_envelope, sample_record

SETS = sorted(directory.name for directory in GOLDEN.iterdir())
STORED = {(fingerprint, name): each for fingerprint in SETS for name, each in golden(fingerprint).items()}


@pytest.mark.parametrize(("fingerprint", "name"), STORED)
def test_a_golden_sample_says_what_it_always_said(fingerprint: str, name: str) -> None:
    stored = STORED[fingerprint, name]
    assert_says(stored["value"], readable_envelope(*Decoder().decode(golden_record(fingerprint, stored))))


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
    stored = STORED.get((envelope_fingerprint(), name))
    assert stored is not None, "the sample is not stored: python -m tests.support.samples"
    assert golden_record(envelope_fingerprint(), stored) == sample_record(name)
    assert stored["value"] == json.loads(json.dumps(readable_envelope(*SAMPLES[name])))


def test_every_event_class_has_a_sample_under_its_name() -> None:
    for cls in EVENT_TYPES:
        assert type(SAMPLES[cls.__name__][2]) is cls
    assert {type(event) for _, _, event in SAMPLES.values()} == set(EVENT_TYPES)


def test_every_released_schema_has_golden_samples_and_no_other() -> None:
    released = {Path(file.name).stem for file in RELEASED.iterdir() if file.name.endswith(".avsc")}
    assert set(SETS) == released
