"""The DSL's verbs, by the processors in plugins/dsl/operators."""
