"""What tests of programs import: the test driver, its topics and a mock context; contracts are in a module here."""

from penstock.plugins.testing import *  # noqa: F403
from penstock.plugins.testing import __all__ as __all__
