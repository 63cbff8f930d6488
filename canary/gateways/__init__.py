"""Adapters that split live requests between production and the candidate; blind to each other."""
