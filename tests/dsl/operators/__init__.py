"""The DSL's verbs, a file for each folder of plugins/dsl/operators."""
