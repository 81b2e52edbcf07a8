"""The processors behind the verbs, a folder for each family; here what several families share."""
