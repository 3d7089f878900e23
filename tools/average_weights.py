"""The mean of the weights of runs that started from each other: often better than each of them.

    python tools/average_weights.py SECOND THIRD --output BOTH [--name cdunet-lite1]

All files must hold the same model. The card is that of the first; `averaged` in it names all with hashes.
"""

from __future__ import annotations

import argparse
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from coam.models.registry import load_model, save_model


def mean_of(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Means of tensors of the same name; what is not a float (a counter) is the last one's."""
    return {
        name: torch.stack([state[name] for state in states]).mean(dim=0) if last.is_floating_point() else last
        for name, last in states[-1].items()
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--name", default="cdunet-lite1")
    options = parser.parse_args()
    files = [load_model(path) for path in options.weights]
    if any(file.model.config != files[0].model.config for file in files):
        raise SystemExit("these files hold different models")
    model = files[0].model
    model.load_state_dict(mean_of([file.model.state_dict() for file in files]))
    averaged = [
        {"name": f.name, "sha256": sha256(p.read_bytes()).hexdigest()}
        for f, p in zip(files, options.weights, strict=True)
    ]
    save_model(model, options.output, options.name, {**files[0].card, "averaged": averaged})
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
