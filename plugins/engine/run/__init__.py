"""A run of an application as its driver sees it, whatever engine runs the tasks: progress, status, metrics, stops."""
