"""A report of `validate` as one self-contained page."""
