"""Reports, manifests and digests."""
