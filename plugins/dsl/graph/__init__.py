"""The logical graph: what verbs record before the settings are known, and how it becomes a Topology."""
