"""Ways to start a plan: Slurm through submitit, or this machine, now."""
