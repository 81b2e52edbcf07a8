"""KStream and what is grouped or windowed of it; verbs by family."""
