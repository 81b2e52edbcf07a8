"""Queries: the stores of a running application, read from outside its tasks, at committed versions only."""
