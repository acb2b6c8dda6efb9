"""Data sets opened, samples read, batches streamed."""
