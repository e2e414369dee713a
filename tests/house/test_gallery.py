"""The pictures of the pages are those that the program makes."""

import importlib.util
import re

import pytest

from tests.helpers.repository import ROOT

image = pytest.importorskip("matplotlib.image")
np = pytest.importorskip("numpy")

_spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs/_site/gallery.py")
gallery = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gallery)
MOST_DIFFERENT = 0.002
"""Mean difference of pixels, of 1: letters drawn by another version of a library."""


def test_every_picture_is_in_the_gallery_and_on_a_page():
    files = {file.name for file in gallery.IMAGES.iterdir()}
    assert files == set(gallery.PICTURES) | gallery.BY_BENCHMARKS
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    used = {name for page in pages for name in re.findall(r"images/([\w-]+\.png)\)", page.read_text())}
    assert used == files


@pytest.mark.parametrize("name", [name for name, picture in gallery.PICTURES.items() if picture.same])
def test_a_picture_is_what_the_program_draws_today(name, tmp_path):
    made, shown = image.imread(gallery.make(name, tmp_path)), image.imread(gallery.IMAGES / name)
    assert made.shape == shown.shape, "run `make gallery`"
    assert np.abs(made - shown).mean() < MOST_DIFFERENT, "run `make gallery`"


def test_a_picture_of_something_else_is_noticed(tmp_path):
    made = image.imread(gallery.make("plan-lab.png", tmp_path))
    assert np.abs(made - np.roll(made, 5, axis=1)).mean() > 10 * MOST_DIFFERENT
