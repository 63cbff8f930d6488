"""The door for people and programs: shows what is, and writes down what a person decides.

It never moves traffic, starts an engine or calls the loop: a decision is a row that the loop reads.
"""

from agent.api.app import create_app

__all__ = ["create_app"]
