"""The command line, on top of all rooms."""
