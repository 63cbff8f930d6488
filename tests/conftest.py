"""What holds for every test."""

from hypothesis import settings

# Machines are noisy: how long an example takes proves nothing.
settings.register_profile("serinus", deadline=None)
settings.load_profile("serinus")
