"""The processors that DSL programs are made of, one file a verb."""
