"""`python -m h3runtime.nano.training`: see `command`, which processes of its own have to find under another name."""

import sys

from h3runtime.nano.training.command import main

if __name__ == "__main__":
    sys.exit(main())
