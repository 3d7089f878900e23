"""Figures of the field, bootstrap intervals, tables."""
