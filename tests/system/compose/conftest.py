"""These tests read files and call commands, which are not compiled."""

import pytest

pytestmark = pytest.mark.of_pure
