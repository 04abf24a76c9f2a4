"""What the tests of whole servers share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.slow_disk import SlowDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowDisk]:
    disk = SlowDisk(tmp_path)
    yield disk
    disk.set("hold", False)
