"""Bytes and frames as Erlang prints them: RabbitMQ quotes them so in its error texts."""


def erlang_binary(data: bytes) -> str:
    """Return bytes as <<"abc">> when they are printable, and otherwise as <<1,2,3>>."""
    if data and all(32 <= byte < 127 for byte in data):
        text = data.decode().replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{text}">>'
    return "<<" + ",".join(str(byte) for byte in data) + ">>"


def describe(kind: int, payload: bytes) -> str:
    """Return a frame as `type 1, first 16 octets = <<...>>`."""
    count = "all" if len(payload) <= 16 else "first 16"
    return f"type {kind}, {count} octets = {erlang_binary(payload[:16])}"
