"""``openmrc job``: table, JSON, report, wrong arguments."""

import json

import pytest

from tests.helpers.commands import run as openmrc


def test_a_job_without_a_file_has_a_sentence_and_a_row_for_each_network():
    result = openmrc("job", "--gpus", "1024", "--days", "3", "--seeds", "2")
    assert result.returncode == 0, result.stderr
    first, *rest = result.stdout.splitlines()
    assert first.startswith("1,024 GPUs for 3 days: ")
    assert [line.split()[0] for line in rest[2:5]] == ["mrc", "dual-port", "conventional"]


def test_json_has_every_loss_and_what_is_left(tmp_path):
    result = openmrc(
        "job", "--gpus", "8192", "--days", "3", "--networks", "mrc,conventional", "--seeds", "2", "--json",
        "--what-if", "--sensitivity",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    for network in told["networks"]:
        lost = sum(each["share"] for each in network["lost"])
        assert network["effective"]["mean"] + network["checkpoints"] + lost == pytest.approx(1)
    assert "16 planes" in told["what_if"]
    assert len(told["sensitivity"]) == 7


def test_a_report_is_one_file_that_can_be_run_again(tmp_path):
    report = tmp_path / "report.html"
    wanted = ("--what-if", "--sensitivity", "--report", report)
    result = openmrc("job", "--gpus", "1024", "--days", "3", "--seeds", "2", *wanted)
    assert result.returncode == 0, result.stderr
    page = report.read_text()
    assert "1,024 GPUs for 3 days" in page
    assert "What one could buy" in page
    assert "://" not in page.split("<body")[1]
    written = page.split("<pre>")[1].split("</pre>")[0]
    again = tmp_path / "again.yaml"
    again.write_text(written.replace("&#39;", "'"))
    second = openmrc("job", again, "--seeds", "2")
    assert second.stdout.splitlines()[0] in page


def test_the_examples_run(tmp_path):
    for name in ("month", "llama3-405b"):
        assert openmrc("example", name, cwd=tmp_path).returncode == 0
        result = openmrc("job", f"{name}.yaml", "--seeds", "1", "--days", "2", cwd=tmp_path)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "9"), "9 are not a whole number of hosts of 8"),
        (("--networks", "mrc,ethernet"), "there is no network ethernet"),
        (("missing.yaml",), "missing.yaml"),
        (("--days", "nan"), "days"),
        (("--gpus", "64", "--report", "/nonexistent/report.html"), "/nonexistent"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message):
    result = openmrc("job", *arguments)
    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr
