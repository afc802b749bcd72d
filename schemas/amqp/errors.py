"""The errors of the AMQP codec. The broker turns each into a reply code (engine/errors.py `refusal`)."""


class PropertyError(ValueError):
    """Properties or a field table that cannot be accepted. The text is one line, for people."""


class Malformed(PropertyError):
    """The bytes do not conform to AMQP."""


class Unacceptable(PropertyError):
    """The bytes can be read, but a value in them is not allowed."""
