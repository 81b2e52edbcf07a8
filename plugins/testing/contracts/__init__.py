"""Contract suites: the tests that every implementation of an interface must pass, ours and yours."""
