"""Dead letters after the fact: reading them from their topics, and replaying them; imports core and runtime."""
