"""Each event and each effect that `rewindmq events` prints is as the schema says (B-63)."""

import json
import typing

import pytest

from rewindmq.engine.cli.commands.events import NOBODY, PrintedEvent, as_json
from rewindmq.engine.cli.outputs import OUTPUTS
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.schemas.events import EVENT_TYPES
from tests.support.described_effects import EFFECTS
from tests.support.outputs import judged
from tests.support.samples import SAMPLES

(EVENT,) = OUTPUTS["events"]


def test_b63_every_event_has_the_fields_of_its_schema() -> None:
    lines = [
        as_json(PrintedEvent("queues-0", number, time_ms, actor, event))
        for number, (time_ms, actor, event) in enumerate(SAMPLES.values())
    ]
    assert {each["event"] for each in judged(EVENT, "".join(lines))} == {each.__name__ for each in EVENT_TYPES}
    judged(EVENT, as_json(PrintedEvent("queues-0", 1, 0, NOBODY, None, "not a record")))


def test_b63_every_effect_has_the_fields_of_its_schema() -> None:
    time_ms, actor, event = SAMPLES["Acked"]
    (line,) = judged(
        EVENT, as_json(PrintedEvent("queues-0", 1, time_ms, actor, event, effects=[each for each, _ in EFFECTS]))
    )
    assert {each["effect"] for each in line["effects"]} == {each.__name__ for each in typing.get_args(Effect)}
    for effect in line["effects"]:
        with pytest.raises(AssertionError, match="later"):
            judged(EVENT, json.dumps(line | {"effects": [effect | {"later": 1}]}))


def test_b63_a_renamed_field_is_found() -> None:
    time_ms, actor, event = SAMPLES["Published"]
    line = as_json(PrintedEvent("queues-0", 1, time_ms, actor, event))
    for name in ("offset", "routing_key", "body_size"):
        with pytest.raises(AssertionError, match=name):
            judged(EVENT, line.replace(f'"{name}"', f'"{name}s"'))
