"""Matching the pairs of a photo set: in this process, in several, or on a Ray cluster."""
