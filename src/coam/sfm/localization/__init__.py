"""Where a query photo was taken: retrieval, matching, PnP with RANSAC."""
