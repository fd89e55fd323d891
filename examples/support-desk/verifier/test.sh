#!/bin/bash
# Scores the desk's records and the report against expectations.json.
set -euo pipefail
exec python3 /verifier/check.py
