"""The real samples in their original formats: beside the repository, never in it."""

from pathlib import Path

import pytest

SAMPLES = (Path(__file__).parents[2] / "shared" / "data").resolve()
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"no samples at {SAMPLES}")
