"""Every reason why a connection is not read from (engine/amqp/read_gate.py)."""

import pytest

from rewindmq.engine.amqp.read_gate import EXCUSES_SILENCE, STOPS_FRAMES, Pause, ReadGate

# reason: stops frames, the socket at once, the socket when bytes are unparsed; a silent client is excused
TABLE = {
    Pause.METHOD: (True, False, True, True),
    Pause.TURN: (True, False, True, True),
    Pause.FLOW: (True, False, True, True),
    Pause.BLOCKED: (True, True, True, True),
    Pause.UNDURABLE: (False, True, True, True),
    Pause.UNREAD: (False, True, True, False),
    Pause.READ: (False, True, True, False),
}


def test_the_table_has_every_reason() -> None:
    assert set(TABLE) == set(Pause)
    assert STOPS_FRAMES in EXCUSES_SILENCE


@pytest.mark.parametrize("reason", Pause)
def test_a_closed_gate_stops_what_its_reason_says(reason: Pause) -> None:
    changes: list[bool] = []
    gate = ReadGate(lambda: changes.append(gate.shut))
    gate.close(reason)
    found = (gate.shut, not gate.reads_socket(False), not gate.reads_socket(True), gate.excuses_silence)
    assert found == TABLE[reason]
    gate.open(reason)
    assert (gate.shut, gate.waiting, gate.reads_socket(True)) == (False, False, True)
    assert changes == [TABLE[reason][0], False]


def test_the_gate_opens_when_its_last_reason_is_gone() -> None:
    gate = ReadGate(lambda: None)
    gate.close(Pause.FLOW)
    gate.close(Pause.BLOCKED)
    gate.open(Pause.FLOW)
    assert (gate.shut, gate.waiting, gate.blocked) == (True, False, True)
    gate.open(Pause.BLOCKED)
    assert not gate.shut
