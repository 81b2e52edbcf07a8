"""The logical graph of a DSL program: what verbs recorded, and how it becomes a Topology."""
