"""Contract suites: the tests that every implementation of an interface must pass, ours and yours."""

from penstock.support.packages import check_installed

check_installed("penstock.testing.contracts", "testing", "pytest", "hypothesis")
