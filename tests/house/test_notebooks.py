"""Tutorials as notebooks: `make notebooks` runs them, here is how a page becomes one."""

import copy

import pytest

from tests.helpers import notebooks
from tests.helpers.pages import blocks

PAGE = """# Title

Before, [a page](../fabric.md#costs).

```yaml
# fabric.yaml
hosts: 16
```

```sh
openmrc plan fabric.yaml
```

```text
fabric: ... hosts
```

```python
print(1)
```
"""


@pytest.fixture
def book(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return notebooks.notebook(page)


def test_text_and_blocks_become_cells_in_their_order(book):
    assert [(cell["cell_type"], cell["source"]) for cell in book["cells"]] == [
        ("markdown", "# Title\n\nBefore, [a page](../fabric.html#costs)."),
        ("code", "%%writefile fabric.yaml\n# fabric.yaml\nhosts: 16"),
        ("code", "%%bash\nopenmrc plan fabric.yaml"),
        ("code", "print(1)"),
    ]
    assert book["cells"][2]["metadata"] == {"shown": "fabric: ... hosts\n"}


def test_output_that_the_page_does_not_show_is_noticed(book):
    for text, problems in (("fabric: 16 hosts\nmore\n", 0), ("fabric: 16 racks\n", 1)):
        ran = copy.deepcopy(book)
        ran["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
        assert len(list(notebooks.wrong(ran))) == problems


@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_tutorial_is_in_its_notebook(page):
    cells = notebooks.notebook(page)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    found = blocks(page)
    assert len(code) == sum(block.language != "text" for block in found)
    assert sum("shown" in cell["metadata"] for cell in code) == sum(
        block.language == "text" for block in found
    )
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_a_notebook_is_run_and_keeps_what_it_prints(book):
    pytest.importorskip("nbclient", reason="nbclient is not installed: `make notebooks` installs it")
    del book["cells"][1:3]
    (output,) = notebooks.run(book)["cells"][1]["outputs"]
    assert "".join(output["text"]) == "1\n"
