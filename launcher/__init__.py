"""Launch reinforcement-learning and PyTorch training on Slurm clusters, or right here.

Importing this package loads the standard library only: it must start fast on login nodes and run in any Python.
"""

__version__ = "0.1.0"
