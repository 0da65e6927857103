"""How Sphinx builds these pages: `make docs`."""

project = "RL Slurm launcher"
html_title = project
html_theme = "furo"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository; tests/test_docs.py looks at all of them
