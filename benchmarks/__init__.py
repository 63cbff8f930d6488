"""What performance claims rest on: each module prints one JSON line last."""
