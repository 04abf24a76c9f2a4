"""`python -m tailrace.compare`, for a checkout."""

import sys

from tailrace.compare.main import main

sys.exit(main())
