"""Shared fixtures: determinism first."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("MPLBACKEND", "Agg")

settings.register_profile(
    "refsim", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("refsim")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real weights and traces that may lie beside a checkout; tests that need it skip without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real weights and traces (../shared/data) are not beside this checkout")
    return SHARED_DATA
