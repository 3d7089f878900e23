"""Many inputs at once: lists of pairs, folders, videos; matched pair by pair, each result kept as it comes.

from coam.batch import match_files, pairs_between, photos_of

pairs = pairs_between(photos_of("summer"), photos_of("winter"))
results = match_files(coam.load_matcher(), pairs, "matches")
"""

from coam.batch.frames import extract_frames, with_frames
from coam.batch.match_files import PairResult, match_files
from coam.batch.pair_lists import NamedPhoto, PhotoPair, pairs_between, photos_of, read_pair_list

__all__ = [
    "NamedPhoto",
    "PairResult",
    "PhotoPair",
    "extract_frames",
    "match_files",
    "pairs_between",
    "photos_of",
    "read_pair_list",
    "with_frames",
]
