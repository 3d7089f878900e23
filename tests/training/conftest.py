"""Photos for the tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import write_photos


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the folder photos/."""
    root = tmp_path_factory.mktemp("data")
    write_photos(root / "photos")
    return root
