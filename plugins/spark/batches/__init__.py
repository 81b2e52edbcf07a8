"""A batch: when it runs, up to where it reads, and how Spark's workers hand it to the task hosts."""
