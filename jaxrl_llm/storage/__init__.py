"""Where runs read and write: folders and buckets of Google Cloud Storage."""
