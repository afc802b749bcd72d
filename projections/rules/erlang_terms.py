"""Prints values in the texts of errors as RabbitMQ prints them."""


def erlang_term(value: object) -> str:
    """Return a value as Erlang's `~tp` prints it: strings as binaries, tables as maps."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return f'<<"{value}">>' if value else "<<>>"
    if isinstance(value, list | tuple):
        return "[" + ",".join(erlang_term(item) for item in value) + "]"
    if isinstance(value, dict):
        return "#{" + ",".join(f"{erlang_term(key)} => {erlang_term(item)}" for key, item in value.items()) + "}"
    return str(value)
