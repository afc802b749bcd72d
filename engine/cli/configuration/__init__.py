"""The settings of a broker: one table, and what is made of it: options, environment, file, docs."""
