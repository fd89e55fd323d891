"""Make the desk's database: ``seed.py DATABASE`` runs seed.sql and turns WAL mode on."""

import sqlite3
import sys
from pathlib import Path

connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA journal_mode = WAL")
seed = Path(__file__).with_name("seed.sql").read_text(encoding="utf-8")
connection.executescript(f"BEGIN;\n{seed}\nCOMMIT;")
connection.close()
