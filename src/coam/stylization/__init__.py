"""The picture one photo shows, in the light and colours of another photo of the same place.

    from coam.stylization import stylize
    stylize("day.jpg", "night.jpg").picture        # (H, W, 3): the day photo's view by night

Dense correspondence colours every position of VIEW from STYLE (`sampled`); two small networks mend it
(`network`); `apply` puts both together; `pairs` and `train` make the weights.
"""

from coam.stylization.apply import NoOverlapError, Stylized, Stylizer, load_stylizer, stylize

__all__ = ["NoOverlapError", "Stylized", "Stylizer", "load_stylizer", "stylize"]
