"""Settings from flags, environment, file and default (B-48): where each value comes from, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.cli.configuration import sources
from rewindmq.engine.cli.configuration.assembly import Impossible, config_of, credentials_of
from rewindmq.engine.cli.configuration.manual import commands_of
from rewindmq.engine.cli.configuration.sources import ConfigError, Sources, lines_of_keys
from rewindmq.engine.cli.configuration.table import SETTINGS
from rewindmq.engine.cli.main import rewindmq, run
from rewindmq.engine.config import Config
from rewindmq.engine.host.watermarks import Limit
from rewindmq.engine.identity.settings import TokenSettings
from tests.support.configuration_page import PAGE, rewritten


@pytest.fixture(autouse=True)
def nobody_elses_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the machine's file nor its environment counts."""
    monkeypatch.setattr(sources, "DEFAULT_FILE", tmp_path / "etc" / "rewindmq.toml")
    for name in [name for name in os.environ if name.startswith("REWINDMQ_")]:
        monkeypatch.delenv(name)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rewindmq.toml"
    path.write_text(text)
    return path


def config_from(file: Path, environment: dict[str, str] | None = None, **flags: Any) -> Config:
    return config_of(Sources({"data": Path("d"), **flags}, environment or {}, file).values())


def test_b48_a_flag_goes_before_environment_file_and_default(tmp_path: Path) -> None:
    file = written(tmp_path, "amqp_port = 1\nhttp_port = 1\nprometheus_port = 1\n")
    environment = {"REWINDMQ_AMQP_PORT": "2", "REWINDMQ_HTTP_PORT": "2"}
    found = Sources({"amqp_port": 3}, environment, file).values()
    names = ("amqp_port", "http_port", "prometheus_port", "node_timeout")
    assert [found[name].value for name in names] == [3, 2, 1, 6]
    assert [found[name].origin for name in names] == ["flag", "REWINDMQ_HTTP_PORT", f"{file}:3", "default"]


def test_b48_without_any_source_the_configuration_is_as_config_has_it() -> None:
    """So a default of the table cannot differ from the field's."""
    assert config_of(Sources({"data": Path("/d")}, {}, None).values()) == Config(Path("/d"))
    assert config_of(Sources({}, {}, None).values()) == Config(Path("rewindmq-data").absolute())


def test_b48_each_setting_is_an_option_of_start_and_of_config() -> None:
    for command in ("start", "config"):
        options = {name for each in commands_of(rewindmq)[command].params for name in each.opts}
        assert {setting.option for setting in SETTINGS.values()} <= options
    assert len({setting.environment for setting in SETTINGS.values()}) == len(SETTINGS)


def test_b48_all_kinds_of_values_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sasl.password = p=w\n# more\nclient.id=x\n")
    (tmp_path / "pass").write_text("geheim\nrest\n")
    file = written(
        tmp_path,
        """
loopback_users = ["a", "b"]
vm_memory_high_watermark = 0.5
disk_free_limit = "2GB"
archive_lag = "5m"
archive = "/a"
proxy_protocol = true
kafka = "k:9092"
kafka_setting = [
  "client.id=y",   # over that of the file
]
kafka_config = "secret"
default_pass_file = "pass"
keep_bodies = "30d"
keys = "keys"
node_timeout = 20
""",
    )
    found = config_from(file)
    assert found.loopback_users == ("a", "b")
    assert (found.vm_memory_high_watermark, found.disk_free_limit) == (Limit(0.5), Limit(absolute=2_000_000_000))
    assert (found.archive.url, found.archive.lag_ms, found.archive.segment_age_ms) == ("/a", 300_000, None)
    assert (found.proxy_protocol, found.keep_bodies_days, found.node_timeout_ms) == (True, 30, 20_000)
    assert found.kafka_settings == (("sasl.password", "p=w"), ("client.id", "y"))
    assert (found.default_pass, found.keys) == ("geheim", tmp_path / "keys")
    assert "geheim" not in repr(found)


def test_b55_a_provider_is_settings(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    (tmp_path / "keys.json").write_text("{}")
    lines = ["oauth_resource_server_id = 'r'", "oauth_issuer = 'https://a/b'", "oauth_ca = 'ca.pem'"]
    assert config_from(written(tmp_path, "")).tokens is None
    assert config_from(written(tmp_path, "\n".join(lines))).tokens == TokenSettings(
        "r", "https://a/b", authority=tmp_path / "ca.pem"
    )
    more = ["oauth_algorithms = ['PS256']", "oauth_username_claims = ['name', 'sub']"]
    for keys, place in (("https://a/keys", "https://a/keys"), ("keys.json", str(tmp_path / "keys.json"))):
        text = "\n".join([*lines, *more, f"oauth_keys = '{keys}'"])
        assert config_from(written(tmp_path, text)).tokens == TokenSettings(
            "r", "https://a/b", place, ("name", "sub"), ("PS256",), tmp_path / "ca.pem"
        )


def test_b48_all_kinds_of_values_stand_in_the_environment(tmp_path: Path) -> None:
    environment = {
        "REWINDMQ_LOOPBACK_USERS": "a,b",
        "REWINDMQ_PROXY_PROTOCOL": "true",
        "REWINDMQ_KAFKA": "k:9092",
        "REWINDMQ_KAFKA_SETTING": "client.id=a b\nclient.rack=c",
        "REWINDMQ_NODE": "",
        "REWINDMQ_SERVICE_HOST": "10.0.0.1",
    }
    found = config_from(written(tmp_path, ""), environment)
    assert (found.loopback_users, found.proxy_protocol) == (("a", "b"), True)
    assert found.kafka_settings == (("client.id", "a b"), ("client.rack", "c"))
    assert found.node == "rewindmq@localhost"


def test_b48_a_flag_takes_a_flag_of_the_file_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "proxy_protocol = true\n")
    assert run(["config", "--config", str(file), "--no-proxy-protocol"]) == 0
    assert "proxy_protocol\tfalse\tflag" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amqp-prot = 3", ":1: 'amqp-prot' is not a setting of RewindMQ; do you mean amqp_port?"),
        ("\n\nzebra = 3", ":3: 'zebra' is not a setting of RewindMQ; `rewindmq config` lists the settings"),
        ("[tls]\nport = 1", ":1: 'tls' is not a table of RewindMQ"),
        ("node.name = 'x'", ":1: node has to be a text, not a table"),
        ("host = 'a'\nhost = 'b'", ":2: not valid TOML: "),
        ("host = ", ":1: not valid TOML: Invalid value"),
        ("amqp_port = '5672'", ":1: amqp_port has to be a whole number from 1 to 65535, not a text"),
        ("amqp_port = true", ":1: amqp_port has to be a whole number from 1 to 65535, not true or false"),
        ("amqp_port = 70000", ":1: amqp_port: '70000' is not a whole number from 1 to 65535"),
        ("read_only = 'yes'", ":1: read_only has to be true or false, not a text"),
        ("log_level = 'loud'", ":1: log_level: 'loud' is not one of debug, info, warning, error"),
        ("host = ['a']", ":1: host has to be a text, not an array"),
        ("loopback_users = ['a', 1]", ":1: loopback_users has to be names with commas between them"),
        ("# x\nkeep_history = '1 year'", ":2: keep_history: '1 year' is not a duration: give a number with"),
        (
            "vm_memory_high_watermark = 40",
            ":1: vm_memory_high_watermark: '40' is neither a fraction up to 1 nor a size",
        ),
        ("vm_memory_high_watermark = nan", ":1: vm_memory_high_watermark: 'nan' is not a size"),
        ("tls_cert = 'none.pem'", ":1: tls_cert: File '"),
        ("kafka_setting = ['x']", ":1: kafka_setting: 'x' is not KEY=VALUE"),
        ("kafka_setting = ['sasl.password=1']", ":1: kafka_setting: sasl.password is a secret, and others see it here"),
        ("node_timeout = 1979-05-27", ":1: node_timeout has to be a whole number from 1 to 600, not a time"),
        ("amqp_port = " + "1" * 5_000, ": not valid TOML: "),
        ("host = " + "[" * 5_000, ": arrays or tables are nested too deeply"),
        ("#" * 40_000, ": the file has more than 32768 bytes"),
        ("tls_verify_peer = true", "the --tls- options need --tls-port or --https-port (tls_verify_peer at "),
        ("tls_port = 1", "--tls-port and --https-port need --tls-cert and --tls-key (tls_port at "),
        ("kafka = ''", "'' is not an address: --kafka HOST:PORT (kafka at "),
        ("keep_local = '7d'", "--keep-local needs --archive (keep_local at "),
        ("kafka_prefix = 'x'", "--kafka-prefix needs --kafka (kafka_prefix at "),
        ("kafka = 'k:1'\ncommit_interval = '2ms'", "--commit-interval is for an embedded log: on Kafka records"),
        ("kafka = 'k:1'\ncommit_interval = '0'", "--kafka-setting linger.ms=MS (commit_interval at "),
        ("read_only = true\nload_definitions = '.'", "without --kafka and --load-definitions (read_only at "),
        ("oauth_issuer = 'http://a'", ":1: oauth_issuer: 'http://a' is not an https URL (http is for the loopback"),
        ("oauth_keys = 'none'", "none' does not exist"),
        ("oauth_algorithms = 'RS256,HS256'", ":1: oauth_algorithms: 'HS256' is none of RS256, RS384"),
        ("oauth_issuer = 'https://a'", "the --oauth- options need --oauth-resource-server-id (oauth_issuer at "),
        ("oauth_resource_server_id = 'r'", "needs --oauth-issuer or --oauth-keys: the provider whose tokens are taken"),
    ],
)
def test_b48_what_is_wrong_in_a_file_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, text)
    data = tmp_path / "data"
    for command in (["config", "--check", str(file)], ["start", "--config", str(file), "--data", str(data)]):
        assert run(command) == 78
        line = capsys.readouterr().err
        assert line.startswith("Error: ")
        assert str(file) in line
        assert said in line
        assert line.count("\n") == 1
        assert len(line) < 400
    assert not data.exists()


def test_b48_a_file_that_is_missing_or_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, said in ((tmp_path / "none.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        assert run(["start", "--config", str(file), "--data", str(tmp_path / "data")]) == 78
        assert capsys.readouterr().err == f"Error: {file}: {said}\n"
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# one\nnode = '\xe4'\n")
    assert run(["start", "--config", str(latin), "--data", str(tmp_path / "data")]) == 78
    assert capsys.readouterr().err == f"Error: {latin}:2: the file is not UTF-8\n"
    assert not (tmp_path / "data").exists()


def test_b48_what_is_wrong_in_the_environment_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REWINDMQ_NODE_TIMEOUT", "0")
    assert run(["start", "--data", str(tmp_path / "data")]) == 78
    assert capsys.readouterr().err == "Error: REWINDMQ_NODE_TIMEOUT: '0' is not a whole number from 1 to 600\n"


def test_b48_wrong_options_are_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (["--data", "d", "--tls-port", "1"], "--tls-port and --https-port need --tls-cert"),
        (["--data", "d", "--kafka-setting", "sasl.password=x"], "sasl.password is a secret, and others see it here"),
        (["--data", "d", "--archive-lag", "1m"], "--archive-lag needs --archive"),
        (["--data", "d", "--tls-cert", "/none"], "'/none' does not exist"),
    ):
        assert run(["start", *options]) == 64
        assert said in capsys.readouterr().err


def test_b48_files_are_found_by_the_variable_and_at_the_usual_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = sources.DEFAULT_FILE
    usual.parent.mkdir()
    usual.write_text("node = 'usual'\n")
    assert Sources.found({}, {}, None).values()["node"].shown == "usual"
    file = written(tmp_path, "node = 'named'\n")
    assert Sources.found({}, {"REWINDMQ_CONFIG": str(file)}, None).values()["node"].shown == "named"
    monkeypatch.setenv("REWINDMQ_CONFIG", str(tmp_path / "none"))
    assert run(["config"]) == 78
    assert run(["config", "--config", str(file)]) == 0
    assert f"node\tnamed\t{file}:1\n" in capsys.readouterr().out


def test_b48_config_says_where_each_value_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_text("sasl.password=geheim\n")
    file = written(
        tmp_path, "kafka = 'k:1'\nkafka_config = 'secret'\nkafka_setting = ['client.id=a', 'client.rack=b']\n"
    )
    assert run(["config", "--config", str(file), "--node", "n", "--format", "json"]) == 0
    out = capsys.readouterr().out
    rows = {row["name"]: (row["value"], row["from"]) for row in json.loads(out)}
    assert list(rows) == list(SETTINGS)
    assert rows["node"] == ("n", "flag")
    assert rows["kafka_config"] == (str(tmp_path / "secret"), f"{file}:2")
    assert rows["kafka_setting"] == ("client.id=a, client.rack=b", f"{file}:3")
    assert rows["data"] == ("rewindmq-data", "default")
    assert "geheim" not in out


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("kafka_config", "# x\nnonsense\n", "secret:2: the line is not KEY=VALUE"),
        ("default_pass_file", "\nx", "secret: the first line is empty, and has to be the secret"),
        ("archive_credentials", "LD_PRELOAD=x", "secret:1: LD_PRELOAD is not a variable of a store: AWS_"),
    ],
)
def test_b48_a_file_with_a_secret_is_refused_with_its_line(
    name: str, content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text(content)
    file = written(tmp_path, f"{name} = 'secret'\nkafka = 'k:1'\narchive = '/a'\n")
    assert run(["config", "--check", str(file)]) == 78
    assert said in capsys.readouterr().err


def test_b48_credentials_of_the_archive_are_variables_of_its_tools(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("# of the store\nAWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY = b=c\n")
    assert credentials_of(tmp_path / "secret") == {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b=c"}
    with pytest.raises(ConfigError, match="No such file"):
        credentials_of(tmp_path / "none")


def test_b48_a_contradiction_names_the_place_of_what_no_flag_gave(tmp_path: Path) -> None:
    file = written(tmp_path, "\nkafka = 'k:1'\n")
    with pytest.raises(Impossible, match=rf"^--read-only serves .* \(kafka at {file}:2\)$") as refused:
        config_from(file, read_only=True)
    assert not refused.value.usage


def test_lines_of_keys() -> None:
    text = "# one\na = 1\n\nb = [\n 1,\n\n 2 ]\nc = '''\nb = 3\n'''\n[d]\ne = 1\n"
    assert {key: line for key, line in lines_of_keys(text).items() if key != "e"} == {"a": 2, "b": 4, "c": 8, "d": 11}


def test_b48_the_page_has_the_table_of_the_code() -> None:
    assert rewritten(PAGE.read_text()) == PAGE.read_text(), "python -m tests.support.configuration_page"


def test_b48_the_usual_file_that_cannot_be_looked_at_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "DEFAULT_FILE", tmp_path / ("x" * 300))
    assert run(["start", "--data", str(tmp_path / "data")]) == 78
    assert capsys.readouterr().err.endswith("x: File name too long\n")


def test_b48_commands_take_secrets_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kafka = ("verify", "--data", str(tmp_path), "--kafka", "127.0.0.1:1")
    assert run([*kafka, "--kafka-setting", "ssl.key.password=geheim"]) == 64
    said = capsys.readouterr().err
    assert "ssl.key.password is a secret, and others see it here" in said
    assert "geheim" not in said
    secret = tmp_path / "secret"
    secret.write_text("a=b\ngeheim")
    assert run([*kafka, "--kafka-config", str(secret)]) == 78
    assert capsys.readouterr().err == f"Error: --kafka-config: {secret}:2: the line is not KEY=VALUE\n"
    assert run(["ping", "-q", "--http-port", "1", "--password", "geheim"]) == 69
    said = capsys.readouterr().err
    assert said.startswith("Warning: other users of this machine see --password; give --password-file FILE or")
    assert "geheim" not in said
    assert run(["ping", "-q", "--http-port", "1", "--password-file", str(secret)]) == 69
    assert run(["ping", "-q", "--http-port", "1", "--password-file", str(tmp_path / "none")]) == 78
    assert capsys.readouterr().err.endswith(f"Error: {tmp_path / 'none'}: No such file or directory\n")
