"""Feature tracks with sub-pixel keypoints: collected, aligned in the photos, merged."""
