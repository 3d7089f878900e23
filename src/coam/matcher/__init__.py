"""`Matcher`: any image-like in, `Matches` in pixels of the original photos out."""

from coam.matcher.matcher import Matcher, PreparedImage, load_matcher, match

__all__ = ["Matcher", "PreparedImage", "load_matcher", "match"]
