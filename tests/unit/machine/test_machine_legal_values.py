"""The bounds of legal numbers belong to the legal ones, in a policy and in an argument."""

import pytest

from rewindmq.projections.machine.rules.legal_values import Number
from rewindmq.schemas.values import Argument


@pytest.mark.parametrize(
    ("number", "legal", "illegal"),
    [
        (Number(), (0, 1, 1 << 62), (-1, True, "1", 1.5, None)),
        (Number(1, 5), (1, 5), (0, 6)),
        (Number(None, 5), (-7, 5), (6,)),
    ],
)
def test_in_a_policy(number: Number, legal: tuple[object, ...], illegal: tuple[object, ...]) -> None:
    assert [value for value in (*legal, *illegal) if number.takes(value)] == list(legal)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (-1, "{value_negative,-1}"),
        (0, "{value_zero,0}"),
        (1, None),
        (255, None),
        (256, "{value_large,256}"),
    ],
)
def test_in_an_argument(value: int, fault: str | None) -> None:
    number = Number(argument_least=1, argument_most=255, too_large="value_large")
    assert number.problem(Argument("x-number", "signedint", value)) == fault
