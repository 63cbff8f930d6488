"""The deployable: decides when, and acts."""
