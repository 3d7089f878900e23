"""From photos to a 3D model and a located camera."""
