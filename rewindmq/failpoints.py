"""Points at which a fault test interrupts the product, as FreeBSD's fail(9) and TiKV's failpoints do.

A point costs one truth test of an empty dict. Only tests fill that dict (tests/support/failpoints.py lists all points):
the product has no setting, no command and no environment variable for it.
"""

from collections.abc import Callable

armed: dict[str, Callable[..., object]] = {}


def reached(name: str, *subject: object) -> None:
    """Announce a moment: a test that has armed this point acts now, on the subject."""
    if armed and (action := armed.get(name)) is not None:
        action(*subject)
