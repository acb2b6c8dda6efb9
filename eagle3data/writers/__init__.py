"""Samples in, committed shards out."""
