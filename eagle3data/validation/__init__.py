"""Checks that a data set is whole and that each state belongs to its token."""
