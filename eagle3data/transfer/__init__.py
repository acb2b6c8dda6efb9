"""Samples from data sets into a data set: byte for byte, or written anew."""
