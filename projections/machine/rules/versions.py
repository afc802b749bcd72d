"""Machine versions: the numbered sets of rules by which events are folded, and the schema that belongs to each.

A history begins under version 1, and marks where it continues under another one (`MachineUpgraded`), so that older
events fold as they did when they were written. A rule of a later version gets a name here, such as `FAIR_TURNS = 2`.

- A rule of the machine holds from the upgrade on: it asks for the machine's version, `state.machine_version >= NAME`.
- For an argument, and for a policy key also where the policy is set later, the queue's version counts: `since` in the
  table of keys (policy_keys.py). A queue that was declared before the upgrade never gets the setting, because its
  settings are merged anew at each start (settings.py) and must be the same each time. Until the upgrade the broker
  refuses the argument and the policy (engine/upgrades/since_version.py).
"""

UNROUTED = 2  # publishes that no queue takes, and reasons, are in the history; policies may have masks

MACHINE_VERSION = 2  # the highest version that this code can fold. Not Final: tests set others, in compiled code too

# The fingerprint of each schema by the machine version that introduced it. Not Final either.
SCHEMAS = {1: "ee545bd0b35f27a4", 2: "6f51e6102926a632"}


def schema_of(machine_version: int) -> str:
    """Return the fingerprint of the schema that is known to every program that can fold this version.

    Everything is written under it, so that the previous program can read a newer one's records until the
    `MachineUpgraded` at which it ends. It would quarantine a record of an unknown schema."""
    return SCHEMAS[max(version for version in SCHEMAS if version <= machine_version)]
