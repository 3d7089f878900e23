"""Photos in: any image-like to upright 8-bit RGB, and to the tensor that a network takes."""

from coam.images.load import MAX_PIXELS, RGB, ImageLike, LoadedImage, load_image

__all__ = ["MAX_PIXELS", "RGB", "ImageLike", "LoadedImage", "load_image"]
