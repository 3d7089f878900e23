"""Seconds of `coam.stylization` for the bundled day and night photo, call by call: the first ones prepare.

PYTHONPATH=src python -m benchmarks.stylize [--resolution 768] [--device auto] [--calls 6]
"""

from __future__ import annotations

import argparse

from coam import samples
from coam.stylization import load_stylizer


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resolution", type=int, default=768)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--calls", type=int, default=6)
    options = parser.parse_args()
    stylizer = load_stylizer(device=options.device, resolution=options.resolution)
    yard = samples.courtyard()
    photos = yard.image("day_04"), yard.image("night_02")
    # A picture comes back as an array of the host, so the device has finished.
    seconds = [stylizer.stylize(*photos).meta["seconds"] for _ in range(options.calls)]
    print(f"{stylizer.matcher.device}, {options.resolution} px: {', '.join(f'{s:.2f}' for s in seconds)} s")


if __name__ == "__main__":
    main()
