"""The run directory and the truth about a run. Standard library only."""
