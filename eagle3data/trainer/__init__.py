"""The EAGLE-3 draft: model, loss, loop, export."""
