"""Dense points of a finished model, on any machine.

`views` are the registered photos without distortion and who sees the same; `warps` finds dense warps between
them; `pair_depth` makes each warp depth by the known poses; `depth_map` puts those of a photo together and
aligns them in the photos; `fusion` keeps what several photos agree on; `dense_points` runs it all, or
COLMAP's stereo in its place.
"""
