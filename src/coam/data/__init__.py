"""Correspondences to learn from: one batch type, several sources."""
