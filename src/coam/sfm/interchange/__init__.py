"""Files of other programs: COLMAP databases, hloc's .h5."""
