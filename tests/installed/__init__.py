"""penstock installed as users install it, in environments without anything else: `make test-install`."""
