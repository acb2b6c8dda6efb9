"""Engines that run the target and hand over its states."""
