"""The Blender scene of the bundled courtyard sample, and the script that renders it (`render.py`)."""
