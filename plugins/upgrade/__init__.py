"""From one program to the next: whether what the last one saved fits, and which stores it covers."""
