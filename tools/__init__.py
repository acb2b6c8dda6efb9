"""What is run from a clone: the demo, the test model, pages that scripts make."""
