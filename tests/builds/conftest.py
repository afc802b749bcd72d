"""These tests run where the compiled build runs."""

import pytest

pytestmark = pytest.mark.of_compiled
