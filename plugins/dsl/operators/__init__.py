"""The processors behind the verbs, a folder for each family; shared code is here."""
