"""What runs a program: the task with its commits, the application on its log, the hosts of tasks, and the run."""
