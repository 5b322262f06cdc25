"""``python -m ropescale``, also under ``torchrun -m`` and ``accelerate launch -m``."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
