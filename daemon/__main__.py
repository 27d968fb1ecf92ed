"""`python -m daemon` is `ckptd`."""

import sys

from daemon.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
