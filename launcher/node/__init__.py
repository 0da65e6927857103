"""The node agent: one light process per node that owns the rendezvous, the ranks, the signals and the verdict.

The same under submitit, under plain sbatch and on a workstation. Standard library only.
"""
