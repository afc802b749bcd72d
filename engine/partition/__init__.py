"""One partition live: append, fold, perform effects; its sessions, counters and clock."""
