"""How fast shards are read and written here, against the machine's limit and the peers."""
