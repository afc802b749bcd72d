"""The keeping of history over years: archive, tiers, trims, recovery, seals. The log below knows nothing of it."""
