"""Which of Spark's executors has which slot, and by which keys Spark's shuffle finds it."""
