"""``${NAME}`` and ``${NAME:-default}`` in a task's environment values.

A task names what it wants from the host; nothing else of the host's
environment goes in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from core.contracts.errors import ConfigError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def fill_in(values: Mapping[str, str], host: Mapping[str, str], *, where: str) -> dict[str, str]:
    """The values with every reference filled in. ``where`` names the section, for the error.

    An empty host variable counts as unset when there is a default, as in a
    shell. Raises ConfigError naming a variable that is not set and has none.
    """

    return {
        name: _REFERENCE.sub(partial(_one, name, host, where), value)
        for name, value in values.items()
    }


def _one(name: str, host: Mapping[str, str], where: str, found: re.Match[str]) -> str:
    variable, default = found.group(1), found.group(2)
    value = host.get(variable)
    if default is not None:
        return value or default
    if value is None:
        raise ConfigError(
            f"{name} needs the variable {variable}, which is not set",
            where=where,
            remedy=f"Export {variable}, or write ${{{variable}:-default}} in the task",
        )
    return value
