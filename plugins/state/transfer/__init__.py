"""State that gets a new place or a new form: moves of changelogs, backups and the way back, resharding."""
