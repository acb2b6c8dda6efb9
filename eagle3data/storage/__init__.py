"""Bytes: URLs, exclusive creation, the layout's names, one shard's encoding and decoding."""
