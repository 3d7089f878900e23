"""Locks what `make` installs: the versions that constraints.in resolves to today, into constraints.txt.

    make lock

pip resolves all packages of all targets together, without installing any. Versions hold for the Python
that this runs with, which is the one CI installs with: another Python may lack some of them, and takes
the newest it can. Renew the lock when a package is added or raised, and commit it with what it needed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).parent
UNLOCKED = {"coam", "torch"}  # ourselves, and what only constraints.in bounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="+", help="requirements, as pip takes them")
    packages = parser.parse_args().packages
    rules = TOOLS / "constraints.in"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--quiet",
        ]
        command += ["--dry-run", "--ignore-installed", "--report", str(report), "--constraint", str(rules)]
        subprocess.run([*command, *packages], check=True)
        text = locked(rules.read_text(), json.loads(report.read_text()))
    (TOOLS / "constraints.txt").write_text(text)
    print(f"{text.count('==') // 2} versions in {TOOLS / 'constraints.txt'}")


def locked(rules: str, report: dict[str, list[dict[str, dict[str, str]]]]) -> str:
    """The rules without their comments, then a line for every package of pip's report."""
    version = ".".join(str(part) for part in sys.version_info[:2])
    lines = [
        "# Made by `make lock` from constraints.in: change that one.",
        *re.findall(r"^[^#\n].*", rules, re.M),
    ]
    found = {normal(item["metadata"]["name"]): item["metadata"]["version"] for item in report["install"]}
    for name in sorted(found.keys() - UNLOCKED):
        lines.append(f'{name}=={found[name].split("+")[0]}; python_version == "{version}"')
    return "\n".join(lines) + "\n"


def normal(name: str) -> str:
    """A package's name as indexes have it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
