"""One task with its edges: log, changelog and local state behind the commit protocol; imports core and stores only."""
