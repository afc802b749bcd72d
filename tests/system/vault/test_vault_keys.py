"""Keys of bodies that a real OpenBao seals (B-64): made, opened, destroyed, and away."""

import asyncio
import json
import pickle
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from rewindmq.engine.erasure import encryption, vault
from rewindmq.engine.erasure.encryption import NoKeyYet, Subjects
from rewindmq.engine.erasure.key_content import KEY_BYTES, NotAtHand
from rewindmq.engine.erasure.key_copies import copy_keys
from rewindmq.engine.erasure.key_store import MAGIC, NOTE, KeyStore
from rewindmq.engine.erasure.vault import PREFIX, Vault, VaultAway, vault_at
from rewindmq.engine.errors import ResourceError
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Route
from tests.support.vault.server import ROOT_TOKEN, VaultServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VaultServer]:
    with VaultServer(tmp_path_factory.mktemp("vault")) as found:
        yield found


@pytest.fixture
def keys(server: VaultServer, tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys")
    store.use_vault(server.place)
    return store


def anew(keys: KeyStore) -> KeyStore:
    """The directory as another process sees it, which has no key in memory."""
    vault_at.cache_clear()
    return KeyStore(keys.directory)


def message(subjects: Subjects, subject: str, body: bytes) -> Published:
    sealed, how = subjects.encrypt(subject, body)
    return Published(
        Route("/", "", "q", ("q",)), b"\0\0", persistent=True, encryption=how, body=sealed, body_size=len(body)
    )


def test_b64_the_directory_has_no_key_in_clear(keys: KeyStore, server: VaultServer) -> None:
    key_id, key = keys.current("ada")
    held = {path.name: path.read_bytes() for path in keys.directory.iterdir()}
    assert held[key_id].startswith(MAGIC + b"vault:v1:")
    assert not any(key in content for content in held.values())
    assert PREFIX + key_id in server.keys
    assert stat.S_IMODE((keys.directory / NOTE).stat().st_mode) == 0o600
    assert server.token_file.read_text().strip() not in held[NOTE].decode(), "the note has no secret"
    again = anew(keys)
    assert again.current("ada") == (key_id, key)
    assert pickle.loads(pickle.dumps(again.frozen())).read(key_id) == key


def test_b64_an_erasure_destroys_the_key_in_the_vault_and_in_memory(keys: KeyStore, server: VaultServer) -> None:
    key_id, key = keys.current("bob")
    sealed = keys.content(key_id)
    assert sealed is not None
    keys.destroy(key_id)
    keys.destroy(key_id)  # again, as after a crash
    assert PREFIX + key_id not in server.keys
    held = vault_at(server.place)
    with pytest.raises(NotAtHand):
        held.at_hand(key_id)
    assert held.open(key_id, sealed) is None, "a copy of the directory is of no use"
    assert keys.read(key_id) is None
    assert not keys.is_held(key_id)
    (keys.directory / key_id).write_bytes(MAGIC + sealed)  # it comes back from a backup
    assert keys.read(key_id) is None
    assert keys.current("bob")[1] != key


def test_b64_another_vault_needs_the_keys_of_the_former_one(
    keys: KeyStore, server: VaultServer, tmp_path: Path
) -> None:
    """Else an erasure would be told as done, and the former Vault would go on opening the key."""
    root = tmp_path / "root-token"
    root.write_text(f"{ROOT_TOKEN}\n")
    server.root("POST", "sys/mounts/other", {"type": "transit"})
    other = replace(server.place, mount="other", token_file=str(root))
    keys.use_vault(other)  # nothing is sealed yet
    key_id, key = keys.current("ada")
    with pytest.raises(OSError, match=f"{server.url}, transit has none of the keys that {server.url}, other sealed"):
        keys.use_vault(server.place)
    assert anew(keys).current("ada") == (key_id, key), "all is as before"
    server.root("POST", "sys/remount", {"from": "other", "to": "moved"})
    moved = replace(other, mount="moved")
    keys.use_vault(moved)
    assert anew(keys).current("ada") == (key_id, key)


def test_b64_a_key_that_is_erased_while_it_is_opened_does_not_stay(
    keys: KeyStore, server: VaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, _ = keys.current("eve")
    late = anew(keys)
    opened = Vault.open

    def open_slowly(self: Vault, key_id: str, sealed: bytes) -> bytes | None:
        found = opened(self, key_id, sealed)
        (keys.directory / f"{key_id}.destroyed").touch()  # another node destroys it
        return found

    monkeypatch.setattr(Vault, "open", open_slowly)
    assert late.read(key_id) is None
    with pytest.raises(NotAtHand):
        vault_at(server.place).at_hand(key_id)


def test_b64_a_key_that_was_destroyed_in_the_vault_alone_is_gone(keys: KeyStore, server: VaultServer) -> None:
    key_id, _ = keys.current("dan")
    server.root("POST", f"transit/keys/{PREFIX}{key_id}/config", {"deletion_allowed": True})
    server.root("DELETE", f"transit/keys/{PREFIX}{key_id}")
    late = anew(keys)
    assert late.read(key_id) is None
    assert not late.is_destroyed(key_id)
    assert late.current("dan")[0] != key_id, "the subject gets a new one"


def test_b64_plain_keys_from_before_stay(server: VaultServer, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    key_id, key = keys.current("old")
    keys.use_vault(server.place)
    assert keys.current("old") == (key_id, key)
    assert len((keys.directory / key_id).read_bytes()) == len(MAGIC) + KEY_BYTES
    keys.destroy(key_id)
    assert keys.read(key_id) is None
    assert keys.current("old")[0].startswith(key_id.split("-")[0])


def test_b64_a_copy_of_the_directory_has_what_is_sealed(keys: KeyStore, server: VaultServer, tmp_path: Path) -> None:
    key_id, key = keys.current("cleo")
    copy = KeyStore(tmp_path / "copy")
    assert copy_keys([key_id], keys, copy) == []
    assert copy.content(key_id) == keys.content(key_id)
    assert copy.read(key_id) == key
    bare = KeyStore(tmp_path / "bare")
    sealed = keys.content(key_id)
    assert sealed is not None
    with pytest.raises(OSError, match="start with --vault"):
        bare.put(key_id, sealed)


def test_b64_the_loop_never_asks_the_vault(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        subjects = Subjects("who", keys, {}, in_loop=True)
        with pytest.raises(NoKeyYet):
            subjects.encrypt("fay", b"hers")
        await subjects.make_key("fay")
        sent = message(subjects, "fay", b"hers")
        assert subjects.decrypt(sent).body == b"hers"
        late = Subjects("who", anew(keys), {}, in_loop=True)
        with monkeypatch.context() as patched:
            patched.setattr(httpx2.Client, "request", None)  # an error, if anything called it
            with pytest.raises(NotAtHand) as missing:
                late.decrypt(sent)
            with pytest.raises(NoKeyYet):
                late.encrypt("fay", b"more")
        await late.fetch(missing.value.key_id)
        assert late.decrypt(sent).body == b"hers"
        await late.erase("fay")
        assert late.decrypt(sent).body == b""
        assert b"x-erased" in late.decrypt(sent).properties

    asyncio.run(story())


def test_b64_a_vault_that_is_away_refuses_quickly_and_comes_back(
    keys: KeyStore, server: VaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "FETCH_SECONDS", 0.2)
    monkeypatch.setattr(encryption, "AGAIN_SECONDS", 0.05)

    async def story() -> None:
        subjects = Subjects("who", keys, {}, in_loop=True)
        await subjects.make_key("gil")
        sent = message(subjects, "gil", b"his")
        key_id = keys.current("gil")[0]
        server.seal()
        try:
            assert subjects.decrypt(message(subjects, "gil", b"more")).body == b"more", "a key in memory works on"
            for _ in range(2):  # the second time the Vault rests
                with pytest.raises(
                    ResourceError, match=r"no key for the message's subject: .*the Vault does not answer"
                ):
                    await subjects.make_key("nobody-yet")
            late = Subjects("who", anew(keys), {}, in_loop=True)
            with pytest.raises(OSError, match="does not answer"):
                await late.fetch(key_id)
            with pytest.raises(OSError, match="does not answer"):
                await subjects.erase("gil")
            assert subjects.decrypt(sent).body == b"", "no body goes out after an erasure that was begun"
            assert "does not answer" in vault_at(server.place).check()
        finally:
            server.unseal()
        assert PREFIX + key_id in server.keys
        await asyncio.sleep(vault.REST_SECONDS)
        assert await subjects.erase("gil") == (key_id,)
        assert PREFIX + key_id not in server.keys

    asyncio.run(story())


def test_b64_settings_that_do_not_fit_are_named(server: VaultServer, tmp_path: Path) -> None:
    assert vault_at(server.place).check() == ""
    wrong = tmp_path / "wrong"
    wrong.write_text("no-token\n")
    place = server.place
    for changed, why in (
        ({"token_file": str(wrong)}, "the token in .*wrong may not GET"),
        ({"token_file": str(tmp_path / "none")}, "none: No such file"),
        ({"mount": "kv"}, "the token in .* may not GET"),
        ({"ca": str(tmp_path / "none")}, "none: No such file"),
    ):
        with pytest.raises(VaultAway, match=why):
            Vault(type(place)(**{**vars_of(place), **changed})).check()
    (tmp_path / NOTE).write_text(json.dumps({"url": 1, "other": 2}))
    with pytest.raises(OSError, match="does not say where a Vault is"):
        KeyStore(tmp_path).vault()


def vars_of(place: object) -> dict[str, str]:
    return {name: getattr(place, name) for name in ("url", "mount", "token_file", "namespace", "ca")}


def test_b64_a_token_that_is_renewed_is_taken(server: VaultServer, keys: KeyStore) -> None:
    token = server.token_file.read_text()
    server.token_file.write_text(server.new_token() + "\n")
    try:
        keys.current("hal")
    finally:
        server.token_file.write_text(token)


def test_b64_memory_is_bounded(server: VaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault, "MOST_OPENED", 2)
    found = Vault(server.place)
    for name in ("one", "two", "three"):
        found.make(name)
    with pytest.raises(NotAtHand):
        found.at_hand("one")
    assert found.at_hand("three")
    monkeypatch.setattr(vault, "CACHE_SECONDS", -1.0)
    found.make("four")
    with pytest.raises(NotAtHand):
        found.at_hand("four")


def test_b64_a_vault_over_tls(tmp_path: Path) -> None:
    with VaultServer(tmp_path, tls=True) as server:
        key, sealed = Vault(server.place).make("one")
        assert Vault(server.place).open("one", sealed) == key
        stranger = type(server.place)(**{**vars_of(server.place), "ca": ""})
        assert "certificate" in Vault(stranger).check()
