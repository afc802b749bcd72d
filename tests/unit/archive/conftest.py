"""An archive in a directory, for every test of the archive."""

from tests.support.archiving import objects as objects
