"""The content of a key's file (key_store.py): a key, or a key that a Vault has sealed (vault.py)."""

KEY_BYTES = 32  # AES-256
SEALED = b"vault:"  # begins what a transit engine has sealed


class NotAtHand(Exception):
    """A Vault has to be asked for the key, and the caller must not wait."""

    def __init__(self, key_id: str) -> None:
        super().__init__(key_id)
        self.key_id = key_id


def is_sealed(content: bytes) -> bool:
    """Return True if the content is a key that a Vault has sealed."""
    return content.startswith(SEALED) and len(content) != KEY_BYTES


def is_key(content: bytes) -> bool:
    """Return True if the content is a key, plain or sealed."""
    return len(content) == KEY_BYTES or is_sealed(content)
