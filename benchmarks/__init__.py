"""Ratios against baselines in the same run: `make bench`."""
