"""Natural compression (arXiv 1905.10988); after files of a model."""
