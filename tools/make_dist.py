"""The sdist and the wheel, checked: they build from each other, twine accepts them, the wheel stays small.

    python tools/make_dist.py dist [--repository owner/name]

A package index shows the README without the repository around it. With --repository, a copy of the tree is
built in which OWNER in the project's addresses is filled in, and relative links and pictures of the README
point into the repository at this version. pip install build twine
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 40e6  # bytes of a wheel


def with_addresses(readme: str, repository: str, version: str) -> str:
    """A README whose relative pictures and links lead into the repository at the tag of this version."""
    raw = f"https://raw.githubusercontent.com/{repository}/v{version}/"
    page = f"https://github.com/{repository}/blob/v{version}/"

    def absolute(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        return f"{picture}[{text}]({raw if picture else page}{target})"

    return re.sub(r"(!?)\[([^\[\]]*)\]\((?!https?://|#|mailto:)([^)\s]+)\)", absolute, readme)


def version_of(pyproject: str) -> str:
    """The version that pyproject.toml states."""
    found = re.search(r'^version = "([^"]+)"', pyproject, flags=re.M)
    if found is None:
        raise SystemExit("pyproject.toml states no version")
    return found[1]


def copy_of_tree(folder: Path) -> None:
    """The files that git knows, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--repository", help="owner/name on GitHub that addresses lead to")
    options = parser.parse_args()
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary)
        copy_of_tree(tree)
        if options.repository:
            settings, readme = tree / "pyproject.toml", tree / "README.md"
            owner, _, name = options.repository.partition("/")
            text = settings.read_text().replace("/OWNER/coam", f"/{owner}/{name}")
            settings.write_text(text.replace("OWNER.github.io/coam", f"{owner}.github.io/{name}"))
            readme.write_text(with_addresses(readme.read_text(), options.repository, version_of(text)))
        # Without flags, build makes the sdist, and the wheel from the sdist.
        subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(tree)], check=True)
    made = sorted(out.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, made)], check=True)
    for path in made:
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
        if path.suffix == ".whl" and path.stat().st_size > MOST:
            raise SystemExit(f"{path.name} is larger than {MOST / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
