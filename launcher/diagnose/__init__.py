"""``nccl diagnose``: finds the world sizes at which ranks do not talk to each other, and the settings that cure it.

`shapes` says what is tried, `search` decides what follows from what was seen, both pure; `trials` runs one test here or
on nodes of an allocation; `report` writes down what came of it.
"""
