"""The kernels as other rooms call them. Imported where Triton runs only, by `coam.tensors.fused_kernels`."""

from coam.kernels.graphs import Recorder
from coam.kernels.mutual import fused_choices, fused_mutual_nearest
from coam.kernels.mutual import is_supported as takes_descriptors
from coam.kernels.refine import fused_seek, fused_unit_samples
from coam.kernels.refine import is_supported as takes_fine_maps
from coam.kernels.selection import fused_rank_within
from coam.kernels.stacked import fuse_network

__all__ = [
    "Recorder",
    "fuse_network",
    "fused_choices",
    "fused_mutual_nearest",
    "fused_rank_within",
    "fused_seek",
    "fused_unit_samples",
    "takes_descriptors",
    "takes_fine_maps",
]
