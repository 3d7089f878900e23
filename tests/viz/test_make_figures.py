from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "tools" / "make_figures.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_figures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    import sys

    sys.modules["make_figures"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["make_figures"]


def test_figures_of_the_real_pair_are_written(script, tmp_path, capsys):
    code = script.main(
        ["matches", "distinctiveness", "--output", str(tmp_path), "--resolution", "256", "--device", "cpu"]
    )
    assert code == 0
    names = ["distinctiveness.jpg", "matches.jpg", "matches_correct.jpg", "matches_flow.jpg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        picture = np.asarray(Image.open(tmp_path / name))
        assert picture.shape[1] == 1600
        assert picture.std() > 20
    assert capsys.readouterr().out.count("KB") == 4


def test_an_unknown_figure_is_refused(script, capsys):
    with pytest.raises(SystemExit):
        script.main(["portrait"])
    assert "there is no figure portrait" in capsys.readouterr().err
