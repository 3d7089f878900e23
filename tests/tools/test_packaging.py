"""What is published says one thing: versions, dependencies and addresses agree wherever they are written."""

from __future__ import annotations

import re
import sys

import yaml
from packaging.specifiers import Specifier

import coam
from support import REPOSITORY

from lock import locked  # isort: skip
from make_dist import version_of, with_addresses  # isort: skip
from try_wheel import oldest  # isort: skip

PYPROJECT = (REPOSITORY / "pyproject.toml").read_text()


def core_dependencies() -> dict[str, str]:
    block = PYPROJECT[PYPROJECT.index("dependencies = [") :].split("]")[0]
    return dict(re.findall(r'"([\w-]+)([^"]*)"', block))


def test_one_version() -> None:
    recipe = yaml.safe_load((REPOSITORY / "conda" / "recipe.yaml").read_text())
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    versions = {version_of(PYPROJECT), coam.__version__, recipe["context"]["version"], citation["version"]}
    assert len(versions) == 1


def test_the_conda_recipe_asks_for_what_pip_asks_for() -> None:
    recipe = yaml.safe_load((REPOSITORY / "conda" / "recipe.yaml").read_text())
    names = {"pytorch": "torch", "py-opencv": "opencv-python-headless"}
    asked = dict(line.split() for line in recipe["requirements"]["run"])
    assert asked.pop("python") == re.search(r'requires-python = "(.+)"', PYPROJECT)[1]
    assert {names.get(name, name): bound for name, bound in asked.items()} == core_dependencies()


def test_no_package_of_the_user_is_bounded_from_above() -> None:
    assert core_dependencies()["torch"] == ">=2.6"
    assert all(re.fullmatch(r">=[\d.]+", bound) for bound in core_dependencies().values())


def test_the_preference_for_a_cpu_build_binds_every_install_of_the_makefile() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    assert "torch<" in (REPOSITORY / "tools" / "constraints.txt").read_text()
    assert re.search(r"^PIP := .*--constraint \$\(CONSTRAINTS\)$", makefile, flags=re.M)
    installs = [line for line in makefile.splitlines() if re.search(r"\bpip\b.*\binstall\b", line)]
    assert len(installs) == 1  # the definition of PIP


def test_what_make_installs_is_locked_and_fits_what_we_ask_for() -> None:
    lines = (REPOSITORY / "tools" / "constraints.txt").read_text().splitlines()
    rules = [
        line for line in (REPOSITORY / "tools" / "constraints.in").read_text().splitlines() if line[:1] != "#"
    ]
    assert lines[1 : 1 + len(rules)] == rules  # `make lock` was run after the last change of the rules
    versions = {}
    for line in lines[1 + len(rules) :]:
        name, version, python = re.fullmatch(
            r'([a-z0-9-]+)==([\w.!]+); python_version == "([\d.]+)"', line
        ).groups()
        versions[name] = (version, python)
    assert "torch" not in versions  # which wheel is at hand depends on the machine
    assert len({python for _, python in versions.values()}) == 1
    extras = PYPROJECT[PYPROJECT.index("[project.optional-dependencies]") : PYPROJECT.index("[project.urls]")]
    made = re.search(r"^EXTRAS := (.+)$", (REPOSITORY / "Makefile").read_text(), flags=re.M)[1].split(",")
    asked = dict(core_dependencies())
    for extra in (*made, "app", "browser", "ray"):
        block = re.search(rf"^{extra} = \[(.*?)\]", extras, flags=re.M | re.S)[1]
        asked |= dict(re.findall(r'"([\w-]+)([^",]*)', block))
    for name, bound in asked.items():
        locked = versions.get(re.sub(r"[-_.]+", "-", name).lower())
        assert name == "torch" or locked, f"{name} is not locked; run make lock"
        if name != "torch" and bound:
            assert Specifier(bound).contains(locked[0]), f"{name} {locked[0]} is locked; run make lock"


def test_a_lock_is_made_of_what_pip_reports() -> None:
    report = {
        "install": [
            {"metadata": {"name": n, "version": v}}
            for n, v in (("Torch", "2.13.0+cpu"), ("coam", "0.1"), ("Foo_Bar.x", "1.2+cpu"))
        ]
    }
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert locked("# why\ntorch<2.14\n", report).splitlines()[1:] == [
        "torch<2.14",
        f'foo-bar-x==1.2; python_version == "{python}"',
    ]


def test_addresses_for_a_package_index() -> None:
    text = "![a](docs/a.jpg) [b](docs/b.md) [c](https://c.org/d) [e](#there) [![f](g.svg)](https://h.org)"
    raw, page = "https://raw.githubusercontent.com/o/n/v1.2/", "https://github.com/o/n/blob/v1.2/"
    assert with_addresses(text, "o/n", "1.2") == (
        f"![a]({raw}docs/a.jpg) [b]({page}docs/b.md) [c](https://c.org/d) [e](#there) "
        f"[![f]({raw}g.svg)](https://h.org)"
    )


def test_oldest_versions_are_read_from_the_project() -> None:
    assert oldest('dependencies = [\n  "torch>=2.6",\n  "numpy>=1.26",\n  "rich>=13",\n]') == [
        "torch==2.6.*",
        "numpy==1.26.*",
    ]
    assert len(oldest(PYPROJECT)) == 2
