"""Tasks that poll, process and commit on their own, without batches."""
