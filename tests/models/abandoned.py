"""A program that locks a document of `accounts` in a transaction, and then does nothing: `URL ID`."""

from __future__ import annotations

import sys
import time

from pymongo import MongoClient

with MongoClient[dict[str, object]](sys.argv[1], appname="queue-manager") as client, client.start_session() as session:
    session.start_transaction()
    accounts = client.get_default_database()["accounts"]
    accounts.update_one({"_id": sys.argv[2]}, {"$set": {"by": "other"}}, session=session)
    print("locked", flush=True)
    time.sleep(60)
