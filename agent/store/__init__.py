"""Serinus' memory: its own tables are the truth that every other part reads.

``migrate(url)`` brings a database to this version's schema, ``open_store(url)`` opens it, and
``store.work()`` is one transaction. It decides nothing and acts on nothing but the database.
"""

from agent.store.codec import Json, decode, encode
from agent.store.ledger import DONE, Action
from agent.store.repositories import GivenVerdict
from agent.store.schema import migrate
from agent.store.unit_of_work import Store, UnitOfWork, open_store

__all__ = [
    "DONE",
    "Action",
    "GivenVerdict",
    "Json",
    "Store",
    "UnitOfWork",
    "decode",
    "encode",
    "migrate",
    "open_store",
]
