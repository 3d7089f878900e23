"""Hook of mkdocs: pages that live elsewhere in the repository join the site, and links to them lead there.

A page of docs/ links to ../src/coam/weights/cdunet-lite1.md, which a reader of the repository can follow; on
the site the card is a page too. Files that are no pages (recipes, folders) become plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# file of the repository -> page of the site
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "src/coam/samples/README.md": "samples.md",
    "src/coam/weights/cdunet-lite1.md": "models/cdunet-lite1.md",
    "src/coam/weights/capsnet-cf.md": "models/capsnet-cf.md",
    "src/coam/weights/cdunet-paper-lite1.md": "models/cdunet-paper-lite1.md",
    "src/coam/weights/stylizer.md": "models/stylizer.md",
}
REQUESTED = re.compile(  # what a browser fetches by itself when it shows a page or reads a style sheet
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(["']?((?:https?:)?//[^"')]+)"""
)
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?!https?://|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; one that docs/ has already stays."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links that leave docs/ to the page of the site, where there is one."""
    here = page.file.src_uri
    return with_site_links(markdown, here, {file.src_uri for file in files})


def on_post_build(config: Any) -> None:
    """A site that would ask other hosts for anything is an error."""
    from mkdocs.exceptions import PluginError

    found = sorted(set(foreign_requests(Path(config.site_dir))))
    if found:
        raise PluginError(f"the site asks other hosts: {', '.join(found)}")


def foreign_requests(site: Path) -> Iterator[str]:
    """Addresses on other hosts that the pages and style sheets below `site` fetch."""
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for groups in REQUESTED.findall(path.read_text(encoding="utf-8")):
            yield from filter(None, groups)


def with_site_links(markdown: str, here: str, known: set[str]) -> str:
    """The text of page `here` with links between pages of the site, whose names are `known`."""
    origin = {page: source for source, page in PAGES.items()}.get(here, f"docs/{here}")
    folder = str(PurePosixPath(origin).parent)
    places = {f"docs/{page}": page for page in known} | {s: p for s, p in PAGES.items() if p in known}

    def lead(found: re.Match[str]) -> str:
        picture, text, target, anchor = found.groups()
        place = places.get(normpath(f"{folder}/{target}"))
        if place is None:
            return text
        return f"{picture}[{text}]({relpath(place, str(PurePosixPath(here).parent))}{anchor or ''})"

    return LINK.sub(lead, markdown)
