"""`Matcher`: any image-like in, `Matches` in pixels of the original photos out."""

from coam.matcher.matcher import Matcher, PreparedImage, load_matcher, match
from coam.matcher.module import CoAM

__all__ = ["CoAM", "Matcher", "PreparedImage", "load_matcher", "match"]
