"""Slurm's language: node lists, directives, queues. Pure functions between text and data; the calls in `commands`."""
