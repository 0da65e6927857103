"""What is looked at on every node before the ranks start, in parallel and within seconds.

Each topic looks (side effects, a deadline of its own, may hang) and then judges what was seen (pure). The agent calls
:func:`launcher.node.preflight.run.preflight`; ``python -m launcher.node.preflight`` is the same as a program.
"""
