"""Legal values of policy keys and of arguments, with RabbitMQ's refusals.

    Number(1).takes(5)               in a policy: True if the value is legal
    Number(1).problem(argument)      of an argument: the fault in its type or value, as an Erlang term; None: no fault

RabbitMQ checks some arguments less or more strictly than the policy key of the same name, so a kind of values can have
different bounds for both. policy_keys.py says which key has which values.
"""

from typing import Final

from rewindmq.schemas.values import Argument

INTEGER_TYPES: Final = ("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint")
MOST_MASKS: Final = 100
HEADER_MASK: Final = "header."
SECONDS_OF: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}

Problem = str | None


class Values:
    """Any value, in a policy and in an argument."""

    def takes(self, value: object) -> bool:
        """Return True if the value is legal in a policy."""
        return True

    def problem(self, argument: Argument) -> Problem:
        """Return the fault in an argument's type or value, or None if it is legal."""
        return None


class Number(Values):
    """Integers: `least` to `most` in a policy (None: without a bound), `argument_least` to `argument_most` in an
    argument. `too_large` is RabbitMQ's word for an argument above its bound."""

    def __init__(
        self,
        least: int | None = 0,
        most: int | None = None,
        argument_least: int | None = 0,
        argument_most: int | None = None,
        too_large: str = "value_too_large",
    ) -> None:
        self.least = least
        self.most = most
        self.argument_least = argument_least
        self.argument_most = argument_most
        self.too_large = too_large

    def takes(self, value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def problem(self, argument: Argument) -> Problem:
        if argument.type not in INTEGER_TYPES:
            return f'"expected integer, got {argument.type}"'
        if self.argument_least is None:
            return None
        assert isinstance(argument.value, int)
        if argument.value < 0:
            return f"{{value_negative,{argument.value}}}"
        if argument.value < self.argument_least:
            return f"{{value_zero,{argument.value}}}"
        if self.argument_most is not None and argument.value > self.argument_most:
            return f"{{{self.too_large},{argument.value}}}"
        return None


class NumberInPolicy(Number):
    """Integers in a policy, anything in an argument: an argument that is not a number counts as absent."""

    def problem(self, argument: Argument) -> Problem:
        return None


class Text(Values):
    """Texts."""

    def takes(self, value: object) -> bool:
        return isinstance(value, str)

    def problem(self, argument: Argument) -> Problem:
        return None if argument.type == "longstr" else f"{{unacceptable_type,{argument.type}}}"


class Flag(Values):
    """True and False."""

    def takes(self, value: object) -> bool:
        return isinstance(value, bool)

    def problem(self, argument: Argument) -> Problem:
        return None if argument.type == "bool" else f"{{unacceptable_type,{argument.type}}}"


class Choice(Values):
    """Any of these texts, or of these numbers. `refusal` is the fault in any other argument, whose value replaces the
    word VALUE. None: the argument accepts anything, and another value counts as absent."""

    def __init__(self, refusal: str | None, *values: str | int) -> None:
        self.refusal = refusal
        self.values = values

    def takes(self, value: object) -> bool:
        return any(type(value) is type(known) and value == known for known in self.values)

    def problem(self, argument: Argument) -> Problem:
        if self.refusal is None:
            return None
        wrong_type = (NUMBER if isinstance(self.values[0], int) else TEXT).problem(argument)
        if wrong_type is not None or argument.value in self.values:
            return wrong_type
        return self.refusal.replace("VALUE", str(argument.value))


class Age(Values):
    """Ages such as 7D or 1h."""

    def takes(self, value: object) -> bool:
        if not isinstance(value, str) or value[-1:] not in SECONDS_OF:
            return False
        digits = value[:-1]
        return digits.isascii() and digits.isdigit() and digits[0] != "0"

    def problem(self, argument: Argument) -> Problem:
        wrong_type = TEXT.problem(argument)
        return "invalid_max_age" if wrong_type is None and age_ms(str(argument.value)) is None else wrong_type


class Masks(Values):
    """Lists of parts of a message to hide: `header.NAME`, the body (`$`), a value in a JSON body (`$.NAME.NAME`)."""

    def takes(self, value: object) -> bool:
        if not isinstance(value, list) or not 0 < len(value) <= MOST_MASKS:
            return False
        return all(isinstance(each, str) and _is_mask(each) for each in value)


def _is_mask(text: str) -> bool:
    if text.startswith(HEADER_MASK):
        return text != HEADER_MASK
    root, *names = text.split(".")
    return root == "$" and all(name and not set(name) & set("[]*") for name in names)


ANY: Final = Values()
NUMBER: Final = Number()  # from 0 on, in a policy and in an argument
INTEGER: Final = Number(None, argument_least=None)
TEXT: Final = Text()
FLAG: Final = Flag()


def age_ms(text: str) -> int | None:
    """Return the milliseconds of an age like 7D or 1h (units Y, M, D, h, m, s; check_max_age in rabbit_amqqueue.erl).

    None for any other text, and for 0."""
    digits, seconds = text[:-1], SECONDS_OF.get(text[-1:])
    if seconds is None or not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        return None
    return int(digits) * seconds * 1000 or None
