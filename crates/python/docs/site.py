"""Adds the pages of the reference, and points links that leave the site at the clone."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PACKAGE = Path(__file__).parents[1] / "python/lull"
#: What `lull` itself exports, and has no page of its own.
INSIDE = ("errors", "search")
#: The pages, each of a module.
MODULES = [
    "lull",
    *(f"lull.{file.stem}" for file in sorted(PACKAGE.glob("[!_]*.py")) if file.stem not in INSIDE),
]
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    config.nav.append({"Reference": [{module: f"reference/{module}.md"} for module in MODULES]})
    return config


def on_files(files: Files, config: Any) -> Files:
    for module in MODULES:
        text = f"# {module}\n\n::: {module}\n    options:\n      show_root_heading: false\n"
        if module == "lull":
            # Its other modules have pages of their own.
            text += "      show_submodules: false\n"
        files.append(File.generated(config, f"reference/{module}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Name the file instead of linking to it where the site does not have it."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        text, target, _part = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        file = files.get_file_from_path(path)
        if file is not None and file.inclusion.is_included():
            return found.group()
        inside = posixpath.normpath(posixpath.join("docs", path))
        return text if text == target else f"{text} (`{inside}`)"

    return LINK.sub(link, markdown)
