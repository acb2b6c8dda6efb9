"""Is every state the one of its token: structure, bytes and meaning. No torch for the first two."""
