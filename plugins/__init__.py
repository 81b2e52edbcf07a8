"""First-party plugins, each found by its entry point. They import core, and each other only by interface."""
