"""Man pages and completion: a man and a bash take what the program makes of its commands (B-48)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rewindmq.engine.cli.configuration.manual import SHELLS, commands_of, roff
from rewindmq.engine.cli.main import rewindmq, run
from tests.support.needs import needed

PROGRAM = Path(sys.executable).with_name("rewindmq")


def test_b48_each_command_has_a_man_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["man", str(tmp_path / "man1")]) == 0
    assert capsys.readouterr().out == ""
    visible = {f"rewindmq-{name}.1" for name, command in commands_of(rewindmq).items() if not command.hidden}
    assert {path.name for path in (tmp_path / "man1").iterdir()} == visible | {"rewindmq.1"}
    (tmp_path / "file").write_text("")
    assert run(["man", str(tmp_path / "file" / "below")]) == 64
    assert capsys.readouterr().err == f"Error: {tmp_path / 'file' / 'below'}: Not a directory\n"


def test_b48_groff_reads_the_pages_without_a_warning(tmp_path: Path) -> None:
    groff = needed("groff")
    assert run(["man", str(tmp_path)]) == 0
    pages = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run([groff, "-man", "-Tutf8", "-ww", "-z", *pages], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    page = str(tmp_path / "rewindmq-start.1")
    shown = subprocess.run([groff, "-man", "-Tascii", page], capture_output=True, text=True, check=True).stdout
    text = re.sub(r".\x08|\x1b\[[0-9;]*m", "", shown)  # bold, in the ways of groff
    assert re.search(r"(?m)^ +--amqp-port INTEGER RANGE\n +Port of AMQP\.", text)
    assert "rewindmq start --config /etc/rewindmq/rewindmq.toml\n" in text


def test_b48_text_of_a_command_cannot_be_a_request_of_roff() -> None:
    assert roff(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert roff("'a -b \\n") == "\\&'a \\-b \\en"


@pytest.mark.parametrize("shell", SHELLS)
def test_b48_a_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert f"_REWINDMQ_COMPLETE={shell}_complete" in capsys.readouterr().out
    assert run(["completion", "csh"]) == 64


def test_b48_bash_completes_commands_options_and_words(tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_bytes(subprocess.run([PROGRAM, "completion", "bash"], capture_output=True, check=True).stdout)
    for words, expected in (
        ("list_q", {"list_queues", "list_quarantined"}),
        ("start --log-f", {"--log-format"}),
        ("start --log-format j", {"json"}),
    ):
        typed = ["rewindmq", *words.split(" ")]
        asked = (
            f"source {script}; COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1};"
            f' _rewindmq_completion {PROGRAM}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
        assert (set(done.stdout.split()), done.stderr) == (expected, "")
