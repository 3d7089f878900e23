"""The documentation holds together: links lead somewhere, examples run, the site asks no other host."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from coam import samples
from support import REPOSITORY

sys.path.append(str(REPOSITORY / "tools"))

from docs_pages import PAGES, foreign_requests, with_site_links  # isort: skip

TEXTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")


def anchors(path: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub and mkdocs make them."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)):
        target, _, anchor = link.partition("#")
        place = path.parent / target if target else path
        assert place.exists(), link
        if anchor:
            assert anchor in anchors(place), link


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = set(re.findall(r"[\w/-]+\.md$", (REPOSITORY / "mkdocs.yml").read_text(), flags=re.M))
    assert {path.name for path in (REPOSITORY / "docs").glob("*.md")} | set(PAGES.values()) == menu


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_source_files_that_a_page_names_exist(path: Path) -> None:
    """`room/file.py` lies in the package, or from the root; NAME.py and files of others stand for others."""
    if path.name == "CHANGELOG.md":
        return
    for name in re.findall(r"`((?:[\w-]+/)+[a-z_0-9]+\.(?:py|yaml))", path.read_text(encoding="utf-8")):
        if not name.startswith("hloc/"):
            assert any((REPOSITORY / place / name).is_file() for place in ("", "src", "src/coam")), name


def test_the_examples_of_getting_started_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import coam

    monkeypatch.chdir(tmp_path)
    for name, view in (("a.jpg", "day_04"), ("b.jpg", "day_05"), ("c.jpg", "day_06")):
        Image.open(samples.courtyard().image(view)).resize((320, 240)).save(name)
    page = (REPOSITORY / "docs" / "getting-started.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        scope: dict[str, object] = {}
        exec(block, scope)
    assert scope["found"].inliers.sum() > 50  # the homography of the last block
    assert len(coam.Matches.load("ab.npz")) > 500


def test_links_on_the_site() -> None:
    known = {"index.md", "train.md", "models/cdunet-lite1.md", "contributing.md"}
    text = "[a](../src/coam/weights/cdunet-lite1.md#data) [b](train.md) [c](../src/coam/sfm) [d](#e)"
    assert (
        with_site_links(text, "index.md", known) == "[a](models/cdunet-lite1.md#data) [b](train.md) c [d](#e)"
    )
    card = with_site_links("[t](../../../docs/train.md)", "models/cdunet-lite1.md", known)
    assert card == "[t](../train.md)"
    assert all((REPOSITORY / source).is_file() for source in PAGES)


def test_requests_to_other_hosts_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://a.org">fine</a><link rel="canonical" href="https://b.org/"><img src="c.png">'
        '<script src="//d.org/e.js"></script><link rel="stylesheet" href="https://f.org/g.css">'
    )
    (tmp_path / "h.css").write_text(
        "@font-face { src: url(https://i.org/j.woff) } b { background: url(k.png) }"
    )
    assert sorted(foreign_requests(tmp_path)) == [
        "//d.org/e.js",
        "https://f.org/g.css",
        "https://i.org/j.woff",
    ]
