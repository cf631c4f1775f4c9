"""`python -I -m lattice.helper`: the same, with Python deaf to its environment."""

from __future__ import annotations

import sys

from lattice.helper.main import main

sys.exit(main())
