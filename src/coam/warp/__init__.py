"""The dense warp between two photos: where every pixel of each lies in the other, and how certain that is."""

from coam.warp.field import Warp, WarpField

__all__ = ["Warp", "WarpField"]
