"""Erasure of a person's messages from a log that never changes: bodies are encrypted, and the key is destroyed.

encryption.py   encrypts the body of a publish, decrypts that of a delivery
key_store.py    the directory of keys
proof.py        whether a subject was erased, from the history and the directory alone
"""
