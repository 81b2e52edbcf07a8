"""The kinds of stores: for each the store that a processor sees, over the rows of a BytesStore."""
