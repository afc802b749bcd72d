"""Bodies encrypted under a key of their subject, so that a person's messages can be erased. Read encryption.py first.

encryption.py   encrypts and decrypts at the broker's edge     key_store.py   a file for each key
proof.py        what the history and the keys say about an erasure
"""
