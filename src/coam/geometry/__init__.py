"""Coordinates and two-view geometry, free of files and networks."""
