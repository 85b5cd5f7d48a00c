"""What users install: the built wheel, in a fresh environment and a folder with an awkward name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_built_wheel_works_without_the_checkout(tmp_path):
    done = subprocess.run(
        ["sh", ROOT / "scripts" / "test-wheel"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
