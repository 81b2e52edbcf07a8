"""The embedded engine: runs an application in this process, or in task hosts of this machine; no Spark, no Java."""
