"""B-54. Options of `rewindmq shovel` that make no sense end with one line, before any broker is asked."""

from pathlib import Path

import pytest

from rewindmq.engine.cli.main import run

NEEDED = ("shovel", "--src-uri", "amqp://a", "--src-queue", "q", "--dest-uri")


@pytest.mark.parametrize(
    ("code", "options", "text"),
    [
        (64, ("amqp://b", "--dest-queue", "x", "--dest-exchange", "y"), "not to both"),
        (64, ("amqp://b", "--dest-exchange-key", "k"), "also give --dest-exchange"),
        (64, ("amqp://b", "--dest-exchange", ""), "give --dest-queue instead"),
        (64, ("amqp://a",), "queue 'q' would be moved to itself"),
        (64, ("amqp://u:hunter2@b",), "--dest-uri: it has a password"),
        (64, ("amqp://u@b",), "user 'u' needs a file with the password (--dest-password-file)"),
        (64, ("amqp://b", "--prefetch-count", "0"), "0 is not in the range"),
        (78, ("amqp://b", "--dest-password-file", "empty"), "the first line is empty"),
        (78, ("amqp://b", "--dest-password-file", "none"), "No such file"),
    ],
)
def test_b54_a_wrong_option_is_refused(
    code: int,
    options: tuple[str, ...],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    assert run([*NEEDED, *options]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("Error")
    assert text in said.err
    assert "hunter2" not in said.err
