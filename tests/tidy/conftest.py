"""These tests read the source and its types, which a build does not change."""

import pytest

pytestmark = pytest.mark.of_pure
