"""``python -m launcher``."""

import gc
import sys

from launcher.cli.main import main

if __name__ == "__main__":
    # Most commands compose a configuration and end: looking through what they imported for garbage, again and again
    # and once more at the exit, is a tenth of them.
    gc.set_threshold(100_000)
    code = main()
    gc.freeze()
    sys.exit(code)
