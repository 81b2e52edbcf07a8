"""The logical graph: the steps that verbs record before the settings are known, and their translation to a Topology."""
