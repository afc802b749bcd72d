"""The errors that a client sees, each with its AMQP reply code.

    raise NotFound("no queue 'q' in vhost '/'")      ->  404 NOT_FOUND - no queue 'q' in vhost '/'

A class says whether its error closes the channel or the connection (AMQP 0-9-1 section 1.2, constants of class
soft-error / hard-error). Texts are RabbitMQ's. The HTTP API and the CLI show the same text, with their own status or
exit code.
"""

from rewindmq.schemas.amqp.errors import PropertyError, Unacceptable


class AmqpError(Exception):
    """An error with an AMQP reply code.

    `name` is the code's name in the protocol table. `closes_connection`: a hard error. `text` has no prefix.
    `recorded`: kind and name of the resource, if the history records the refusal (engine/broker/access_log.py)."""

    reply_code = 541
    name = "INTERNAL_ERROR"
    closes_connection = True
    recorded: tuple[str, str] | None = None

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    @property
    def reply_text(self) -> str:
        """The text of the close method: name and text."""
        return f"{self.name} - {self.text}"


class ContentTooLarge(AmqpError):
    reply_code, name, closes_connection = 311, "CONTENT_TOO_LARGE", False


class NoConsumers(AmqpError):
    reply_code, name, closes_connection = 313, "NO_CONSUMERS", False


class AccessRefused(AmqpError):
    """`recorded`: as of AmqpError, where the user lacks a permission."""

    reply_code, name, closes_connection = 403, "ACCESS_REFUSED", False

    def __init__(self, text: str, recorded: tuple[str, str] | None = None) -> None:
        super().__init__(text)
        self.recorded = recorded


class ReadOnly(AccessRefused):
    """The request would change something, and the broker is read-only (embedded/read_only.py)."""

    def __init__(self) -> None:
        super().__init__("this broker is read-only: it shows a history, and changes nothing")


class LoginsBraked(AccessRefused):
    """Too many logins failed (engine/broker/login_brake.py). `seconds`: until the next one is tried."""

    def __init__(self, address: str, seconds: int) -> None:
        super().__init__(f"too many logins from {address or 'there'} failed: try again in {seconds} seconds")
        self.seconds = seconds


class NotFound(AmqpError):
    reply_code, name, closes_connection = 404, "NOT_FOUND", False


class ResourceLocked(AmqpError):
    reply_code, name, closes_connection = 405, "RESOURCE_LOCKED", False


class PreconditionFailed(AmqpError):
    reply_code, name, closes_connection = 406, "PRECONDITION_FAILED", False


class MessageTooLarge(PreconditionFailed):
    """A publish to `exchange` exceeds the broker's limit. `configured`: the limit is not the default."""

    def __init__(self, exchange: str, size: int, limit: int, configured: bool) -> None:
        super().__init__(f"message size {size} is larger than {'configured ' if configured else ''}max size {limit}")
        self.recorded = "exchange", exchange


class ConnectionForced(AmqpError):
    reply_code, name, closes_connection = 320, "CONNECTION_FORCED", True


class InvalidPath(AmqpError):
    reply_code, name, closes_connection = 402, "INVALID_PATH", True


class FrameError(AmqpError):
    reply_code, name, closes_connection = 501, "FRAME_ERROR", True


class MalformedFrame(AmqpError):  # the protocol table calls it "syntax error"
    reply_code, name, closes_connection = 502, "SYNTAX_ERROR", True


class CommandInvalid(AmqpError):
    reply_code, name, closes_connection = 503, "COMMAND_INVALID", True


class ChannelError(AmqpError):
    reply_code, name, closes_connection = 504, "CHANNEL_ERROR", True


class UnexpectedFrame(AmqpError):
    reply_code, name, closes_connection = 505, "UNEXPECTED_FRAME", True


class ResourceError(AmqpError):
    reply_code, name, closes_connection = 506, "RESOURCE_ERROR", True


class NotAllowed(AmqpError):
    reply_code, name, closes_connection = 530, "NOT_ALLOWED", True


class NotImplementedByBroker(AmqpError):
    reply_code, name, closes_connection = 540, "NOT_IMPLEMENTED", True


class InternalError(AmqpError):
    reply_code, name, closes_connection = 541, "INTERNAL_ERROR", True


def resource(kind: str, name: str, vhost: str) -> str:
    """Name a queue or an exchange as RabbitMQ's texts do."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def refusal(error: PropertyError) -> AmqpError:
    """Return the error that refuses a client's properties or table.

    It is 502 for damaged bytes, and 406 for a value that is not allowed."""
    return PreconditionFailed(str(error)) if isinstance(error, Unacceptable) else MalformedFrame(str(error))
