"""When a function of tensors is recorded as a CUDA graph, and when it is run as it is."""

from types import SimpleNamespace

import torch

from coam.kernels import graphs
from coam.kernels.graphs import USES_BEFORE_RECORDING, Recorder


def test_a_shape_is_recorded_only_when_it_comes_again():
    recorder = Recorder()
    for _ in range(USES_BEFORE_RECORDING):
        results = recorder(("double",), lambda inputs: [2 * inputs[0]], [torch.ones(3)])
        torch.testing.assert_close(results[0], torch.full((3,), 2.0))
    assert len(recorder._recordings) == 0
    recorder(("double",), lambda inputs: [2 * inputs[0]], [torch.ones(4)])  # another shape counts for itself
    assert sorted(recorder._uses.values()) == [1, USES_BEFORE_RECORDING]


def test_a_forgotten_shape_must_come_again_before_it_is_recorded(monkeypatch):
    recorded = []

    def record(function, inputs):
        recorded.append(len(inputs[0]))
        graph = SimpleNamespace(replay=lambda: None)
        return graphs._Recording(graph, [inputs[0].clone()], function(inputs))

    monkeypatch.setattr(graphs, "_record", record)
    recorder = Recorder(kept=1)
    for _ in range(6):  # two sizes in turn, but only one is kept
        for size in (3, 4):
            recorder(("double",), lambda inputs: [2 * inputs[0]], [torch.ones(size)])
    assert recorded == [3, 4, 3]  # 3 was dropped for 4 and came twice as it is; not recorded at every call
