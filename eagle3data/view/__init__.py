"""A data set as web pages on this machine: read only, and nothing but what its URL holds."""
