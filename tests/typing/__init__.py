"""What type checkers see of public interfaces. `make types` checks these files; they are never run.

`assert_type` says which type is inferred. A line that must be an error has an ignore comment, which is itself an error
once the line is none.
"""
