"""The wheel in an environment of its own, outside the repository: does it install, match and reconstruct?

    python tools/try_wheel.py dist [--constraint FILE] [--torch newest | oldest] [--tests]

--torch newest installs the newest torch first and fails if installing the wheel changes it; --torch oldest
takes the lowest versions that pyproject.toml allows. --tests also runs a fast part of the tests against the
installed package. The environment is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What touches torch and numpy most, and takes a minute.
TESTS = ("tests/geometry", "tests/images", "tests/matching", "tests/models", "tests/matcher", "tests/store")
TEST_PACKAGES = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "efficientnet_lite_pytorch==0.1.0")
TIED = {"torch", "numpy"}  # the packages whose oldest versions are tried


def oldest(pyproject: str) -> list[str]:
    """name==version for the lowest allowed versions of torch and numpy."""
    block = pyproject[pyproject.index("dependencies = [") :].split("]")[0]
    return [f"{name}=={low}.*" for name, low in re.findall(r'"([\w-]+)>=([\d.]+)"', block) if name in TIED]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--constraint", type=Path, help="constraints file for pip")
    parser.add_argument("--torch", choices=("newest", "oldest"))
    parser.add_argument("--tests", action="store_true")
    options = parser.parse_args()
    (wheel,) = options.dist.resolve().glob("*.whl")
    bound = ["--constraint", str(options.constraint.resolve())] if options.constraint else []
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean |= {"OMP_NUM_THREADS": "1"}  # tests run side by side

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def run(*command: str | Path, cwd: Path = folder) -> str:
            print("$", *(str(word).replace(temporary, "TMP") for word in command), flush=True)
            done = subprocess.run(
                [str(word) for word in command], cwd=cwd, env=clean, text=True, stdout=subprocess.PIPE
            )
            print(done.stdout, end="", flush=True)
            if done.returncode:
                raise SystemExit(f"failed with code {done.returncode}")
            return done.stdout

        run(sys.executable, "-m", "venv", "venv")
        python, coam = folder / "venv/bin/python", folder / "venv/bin/coam"
        pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        version = (python, "-c", "import torch, numpy; print(torch.__version__, numpy.__version__)")
        before = ""
        if options.torch == "newest":
            run(*pip, "--upgrade", "torch", "numpy")
        # Newer packages that coam needs may ask for a newer numpy: who stays with an old one tells pip.
        kept = oldest((ROOT / "pyproject.toml").read_text()) if options.torch == "oldest" else []
        if kept:
            run(*pip, *kept)
        if options.torch:
            before = run(*version)
        run(*pip, *bound, f"{wheel}[sfm]", *kept)
        after = run(*version)
        if before not in ("", after):
            raise SystemExit(f"installing coam changed torch or numpy: {before.strip()} to {after.strip()}")
        run(coam, "doctor")
        run(coam, "demo", "--output", "demo.png")
        photos = run(
            python, "-c", "from coam.samples import courtyard; print(courtyard().image('day_04').parent)"
        )
        run(coam, "sfm", photos.strip(), "-o", "model", "--resolution", "320")
        if options.tests:
            run(*pip, *bound, *TEST_PACKAGES)
            run(python, "-m", "pytest", "-n", "2", *TESTS, cwd=ROOT)
    print(f"{wheel.name} works")


if __name__ == "__main__":
    main()
