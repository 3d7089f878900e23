"""What a visitor of the web app may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds that keep one visitor from using up the machine."""

    upload_bytes: int = 40 * 1024 * 1024  # of one file
    photo_pixels: int = 50_000_000  # of one photo; checked before it is decoded
    resolutions: tuple[int, ...] = (320, 512, 640, 800, 1024)  # long side at which photos are matched
    most_matches: int = 8192
    photos: int = 40  # of one reconstruction
    waiting_jobs: int = 16  # one more is turned away
    kept_photos: int = 8  # encoded photos that stay in memory
    kept_settings: int = 4  # networks made ready with other settings
    kept_results: int = 4  # stylized pictures, mixed anew when only their strength changes
    keep_files_seconds: int = 3600  # uploads and results are deleted when they are older


DEFAULT_LIMITS = Limits()
