"""``python -m arht``."""

from __future__ import annotations

import sys

from arht.cli import main

if __name__ == "__main__":
    sys.exit(main())
