"""Our model beside the matchers people know, by one command: intervals, seconds, and who leads.

    python tools/peers_table.py DATA OUT [-m cdunet-lite1 -m aliked+lightglue ...] [--limit N]

DATA is as for card_figures.py. Each set is one `coam eval` command, which is printed; a run that was killed
goes on where it stopped; what is not there is named. OUT gets all reports, and peers.md with the tables.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from card_figures import PARTS, call, root_of

MATCHERS = ("cdunet-lite1", "aliked+lightglue", "disk+lightglue", "xfeat", "xfeat+lighterglue", "rootsift")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("-m", "--matcher", action="append", help="name or .safetensors file; repeatable")
    parser.add_argument("--limit", type=int, help="at most so many pairs of each set")
    options = parser.parse_args()
    named = [word for name in options.matcher or MATCHERS for word in ("-m", name)]
    limit = ["--limit", str(options.limit)] if options.limit else []
    tables = []
    for part in PARTS:
        if not part.baselines:
            continue
        if not (options.data / part.folder).is_dir():
            print(f"left out: {options.data / part.folder} is not there")
            continue
        folder = options.out / part.folder  # estimators share matches
        command = ["eval", *part.command, "--root", str(root_of(part, options.data, options.out))]
        call([sys.executable, "-m", "coam", *command, *named, *limit, "-o", str(folder)])
        title = " ".join([part.folder, *part.command])
        tables.append(f"## {title}\n\n{(folder / 'side_by_side.md').read_text()}")
    (options.out / "peers.md").write_text("\n".join(tables))
    print(f"wrote {options.out / 'peers.md'}")


if __name__ == "__main__":
    main()
