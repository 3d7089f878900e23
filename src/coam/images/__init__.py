"""Photos in: any image-like to upright 8-bit RGB, and to the tensor that a network takes."""

from coam.images.limits import MAX_PIXELS
from coam.images.load import RGB, ImageLike, LoadedImage, load_image

__all__ = ["MAX_PIXELS", "RGB", "ImageLike", "LoadedImage", "load_image"]
