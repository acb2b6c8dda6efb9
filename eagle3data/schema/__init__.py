"""What a data set is: manifest, index schema, layer numbering, token axis. No torch."""
