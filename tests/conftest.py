"""Imported before any test: the face claims this checkout's folders, as it does for users."""

from __future__ import annotations

import benchflow_workbench

assert benchflow_workbench.__version__
