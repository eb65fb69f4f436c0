"""The docstrings of the native part, for the reference.

Types are read from the stubs `_lull.pyi`, of which most names have no docstrings: those are
written once, in Rust, and read from the built module. A public name without a docstring, in
either part, is a warning, and a warning ends the build.
"""

from __future__ import annotations

from typing import Any

import griffe
import lull._lull

logger = griffe.get_logger("native_docs")


def native_text(member: griffe.Object) -> str | None:
    """Return the docstring that the built module has for a name of the stubs."""
    found: Any = lull._lull
    for name in member.path.removeprefix("lull._lull.").split("."):
        found = getattr(found, name, None)
    # A constant has the docstring of its type.
    return None if isinstance(found, str) else getattr(found, "__doc__", None)


class NativeDocs(griffe.Extension):
    """Fills in the docstrings of the stubs, and reports what is without one."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for name, module in pkg.modules.items():
            # What a private module defines is public if the package exports it.
            exports = pkg.exports if name.startswith("_") else module.exports
            for member in module.members.values():
                if not member.is_alias and not member.is_module:
                    self._complete(member, is_public=member.name in (exports or []))

    def _complete(self, member: Any, *, is_public: bool) -> None:
        """Give a name its native docstring, and those of a class theirs."""
        text = native_text(member) if member.path.startswith("lull._lull.") else None
        if member.docstring is None and text:
            member.docstring = griffe.Docstring(text.strip(), parent=member, parser="numpy")
        if member.docstring is None and is_public:
            logger.warning("%s has no docstring", member.path)
        if not member.is_class:
            return
        construct(member)
        described = member.docstring.value if member.docstring else ""
        for name, part in member.members.items():
            if not part.is_alias and not name.startswith("_"):
                self._complete(part, is_public=is_public and f"\n{name} : " not in described)


def construct(found: Any) -> None:
    """Show the arguments of `__new__`, which native classes have, as those of `__init__`."""
    if "__init__" not in found.members and "__new__" in found.members:
        made = found.members.pop("__new__")
        made.name = "__init__"
        found.members["__init__"] = made
