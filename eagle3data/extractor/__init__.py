"""Prompts in, states out: prepare, plan, engines, run."""
