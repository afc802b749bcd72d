"""Erasure of bodies from a log that never changes: they are encrypted, and the key is destroyed.

encryption.py   encrypts the body of a publish, decrypts that of a delivery
key_store.py    the directory of keys; key_content.py: the content of a key's file
vault.py        keys that a Vault has sealed
erasures.py     a person's messages are erased
day_expiry.py   the bodies of a day expire
key_copies.py   the keys of a history that was recovered
proof.py        whether a subject was erased or a day has expired, from the history and the directory alone
"""
