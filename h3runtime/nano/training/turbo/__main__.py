"""`python -m h3runtime.nano.training.turbo OUT`: see `command`."""

import sys

from h3runtime.nano.training.turbo.command import main

if __name__ == "__main__":
    sys.exit(main())
