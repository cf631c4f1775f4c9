"""`python -I -m lattice.helper`: the same program; Python ignores its environment variables."""

from __future__ import annotations

import sys

from lattice.helper.main import main

sys.exit(main())
