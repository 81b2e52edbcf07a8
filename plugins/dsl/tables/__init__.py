"""KTable, GlobalKTable and grouped tables; verbs by family."""
