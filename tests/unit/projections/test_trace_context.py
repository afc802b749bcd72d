"""The headers traceparent and tracestate of a message, as W3C Trace Context has them (B-35)."""

from typing import Any

import pytest

from rewindmq.projections.traces.trace_context import Trace, trace_of
from tests.support.amqp_wire import properties

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{PARENT}-01"


def found(traceparent: Any, **headers: Any) -> Trace | None:
    given = {"traceparent": traceparent, **headers}
    as_bytes = {name: bytearray(value) if isinstance(value, bytes) else value for name, value in given.items()}
    return trace_of(properties(headers=as_bytes))


@pytest.mark.parametrize("value", [VALID, VALID.encode()])
def test_b35_text_and_bytes_are_read(value: str | bytes) -> None:
    assert found(value) == Trace(TRACE, PARENT, 1)
    assert found(value, tracestate="a=1,b=2") == Trace(TRACE, PARENT, 1, "a=1,b=2")
    assert found(value, tracestate=b"a=1") == Trace(TRACE, PARENT, 1, "a=1")


@pytest.mark.parametrize("state", ["x" * 513, "a=\x01", "a=ü", 7, ""])
def test_b35_a_senseless_tracestate_is_left_out(state: Any) -> None:
    assert found(VALID, tracestate=state) == Trace(TRACE, PARENT, 1)


def test_b35_a_version_to_come_may_say_more() -> None:
    assert found(f"01-{TRACE}-{PARENT}-00-more") == found(f"cc-{TRACE}-{PARENT}-00") == Trace(TRACE, PARENT, 0)


@pytest.mark.parametrize(
    "value",
    [
        "",
        VALID[:-1],
        VALID + "0",
        VALID + "-more",
        VALID + "\n",
        VALID.upper(),
        f"ff-{TRACE}-{PARENT}-01",
        f"01-{TRACE}-{PARENT}-01more",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        b"\xff" * 55,
        5,
        None,
        {"a": VALID},
        "0" * 100_000,
    ],
)
def test_b35_an_invalid_traceparent_is_ignored(value: Any) -> None:
    assert found(value) is None


def test_b35_other_properties_are_no_trace() -> None:
    assert trace_of(b"") is None
    assert trace_of(b"\xff\xfftraceparent") is None
