"""Storage of runs: folders, and buckets of Google Cloud Storage."""
