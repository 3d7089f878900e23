"""Matching on tensors: positions on a grid, exact mutual nearest neighbours, sub-pixel refinement.

This room knows nothing of images or models.
"""
