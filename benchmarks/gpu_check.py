"""Check and time everything that runs on a CUDA device: the fused search, the network, whole pairs.

    PYTHONPATH=src python -m benchmarks.gpu_check FOLDER [--parts checks,rates,shapes,layers,profile,pairs]

Needs torch with CUDA and Triton, numpy, OpenCV, Pillow and safetensors. Prints as it goes; figures go to
FOLDER/gpu_check.json after every part. Ends with code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu_pairs import measure_pairs, profile_pairs
from benchmarks.gpu_search import DEVICE, checks, rates, shapes
from benchmarks.gpu_timing import Row, say


def main() -> None:
    """Run the parts, write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where gpu_check.json is written")
    parser.add_argument("--parts", default="checks,rates,layers,pairs")
    parser.add_argument("--model", default="cdunet-lite1", help="name or .safetensors file")
    parser.add_argument("--size", type=int, default=512, help="side of the photos in pixels")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here")
    from benchmarks.gpu_layers import measure_layers  # needs Triton

    options.folder.mkdir(parents=True, exist_ok=True)
    report: Row = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    say(str(report))
    setting = (options.model, options.size, DEVICE)
    actions: dict[str, Callable[[], list[Row]]] = {
        "checks": checks,
        "rates": rates,
        "shapes": shapes,
        "layers": lambda: measure_layers(*setting),
        "profile": lambda: profile_pairs(*setting),
        "pairs": lambda: measure_pairs(*setting),
    }
    for part in options.parts.split(","):
        say(f"---- {part}")
        try:
            with torch.inference_mode():
                report[part] = actions[part]()
        except Exception as error:  # the other parts are worth having
            traceback.print_exc()
            report[part] = [{"passed": False, "error": str(error)}]
        (options.folder / "gpu_check.json").write_text(json.dumps(report, indent=1))
    failed = [row for part in actions for row in report.get(part, []) if not row.get("passed", True)]
    say(f"{len(failed)} checks failed" if failed else "all checks passed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
