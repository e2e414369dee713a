"""The controller's page in Debian's Chromium: it names what breaks while it is open, and its actions work."""

import shutil
import time
from contextlib import ExitStack

import pytest

from openmrc.fabric import Fabric
from openmrc.operate.linkmap import Topology
from openmrc.operate.model import Action, JobSeen, Report, Request
from openmrc.operate.tokens import agent_token
from tests.helpers.commands import command
from tests.helpers.controllers import BOOT, SECRET, TOKEN, agent, controller, operator, report_all
from tests.helpers.ends import eventually
from tests.helpers.labs import RING, needs_root, running, specification

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)"
)
PAIRS = list(zip(RING, RING[1:] + RING[:1], strict=True))
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return specification(tmp_path_factory.mktemp("fabric"), "shown")


@pytest.fixture(scope="module")
def fabric(file):
    return Fabric.load(file)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        # Chromium's own sandbox refuses root; what it opens is this test's controller only.
        it = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield it
        it.close()


@pytest.fixture
def opened(browser):
    """Opens a page; complains at the end about errors in it, and about requests that leave the machine."""
    complaints = []

    def open_page(address, **options):
        context = browser.new_context(**options)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: foreign(request.url))
        page.goto(address)
        page.wait_for_selector("#live.on")
        return page

    def foreign(url):
        if not url.startswith(("http://127.0.0.1:", "data:")):
            complaints.append(url)

    yield open_page
    assert complaints == []


def test_the_page_names_a_cable_that_breaks_while_it_is_open(fabric, file, tmp_path, opened):
    link = fabric.paths("h0", "h4")[0].links[1]
    with controller(file, tmp_path / "c.db") as (address, _):
        report_all(address, fabric, PAIRS)
        page = opened(f"{address}/#token=wrong")
        page.locator("#faults", has_text="none").first.wait_for()

        def named():
            report_all(address, fabric, PAIRS, [link])
            return page.locator("#faults li").all_inner_texts()[0].startswith(f"link {link}\n")

        assert eventually(named, 60)
        page.locator("#faults .name", has_text=link).first.click()
        page.wait_for_selector(f"#link b:text-is('{link}')")
        assert "broken" in page.locator("#link").inner_text()
        # Its cell is red, as the legend's.
        info = page.evaluate("fetch('api/v1/fabric').then(r => r.json())")
        panel = next(each for each in info["panels"] if (each["plane"], each["tier"]) == (0, 0))
        row, column = divmod(Topology(fabric).links[link].number - panel["first"], panel["columns"])
        pixel = page.evaluate(
            """([across, down]) => {
                const canvas = document.querySelector('canvas'), context = canvas.getContext('2d');
                const at = [across * canvas.width, down * canvas.height].map(Math.floor);
                return [...context.getImageData(...at, 1, 1).data];
            }""",
            [(column + 0.5) / panel["columns"], (row + 0.5) / panel["rows"]],
        )
        assert pixel[0] > 180
        assert pixel[1] < 100


@needs_root
def test_the_page_names_a_link_of_a_lab_that_is_cut_while_it_is_open(tmp_path, opened, monkeypatch):
    hosts = [f"h{number}" for number in range(8)]
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path / "observed"))
    tokens = tmp_path / "agents"
    tokens.write_text("".join(f"{host} {agent_token(TOKEN, host)}\n" for host in hosts))
    tokens.chmod(0o600)
    with running(tmp_path, "seen", hosts=8) as lab, ExitStack() as stack:
        address, _ = stack.enter_context(controller(lab.state.directory / "fabric.yaml", tmp_path / "c.db"))
        stack.enter_context(command("agent", address, "--token-file", tokens))
        page = opened(f"{address}/")
        links = len(lab.layout.links)
        page.locator("#figures", has_text=f"{links} links good").wait_for()
        link = lab.layout.link("p1/t0-1:up2").name
        lab.fail(link)
        page.locator("#faults .name", has_text=link).wait_for()
        page.locator("#faults .name", has_text=link).click()
        page.locator("#link dd", has_text="broken").wait_for()
        lab.repair(link)
        page.locator("#faults", has_text="none").wait_for()
        page.locator("#figures", has_text=f"{links} links good").wait_for()


def test_two_operators_act_and_see_each_other_and_names_with_markup_stay_text(fabric, file, tmp_path, opened):
    link = fabric.paths("h0", "h4")[0].links[1]
    with controller(file, tmp_path / "c.db") as (address, _), operator(address) as client:
        ada, ben = opened(f"{address}/#token={SECRET}"), opened(f"{address}/", color_scheme="dark")
        assert "token" not in ada.url
        for page in (ada, ben):
            page.fill("#wanted", link)
            page.press("#wanted", "Enter")
            page.wait_for_selector(f"#link b:text-is('{link}')")
        ada.locator("#link button", has_text="deny").click()
        ada.fill("#why", "<img src=x onerror=alert(1)>")
        ada.fill("#who", "<b>ada</b>")
        ada.click("#go")
        ada.wait_for_selector("#confirm", state="hidden")
        assert client.link(link).denied_by == "<b>ada</b>"
        # The other one sees it, and is asked for the token first.
        ben.locator("#log", has_text="<b>ada</b>").first.wait_for()
        ben.locator("#link", has_text="denied by").first.wait_for()
        assert ben.locator("#log img, #log li b b, #link img").count() == 0
        ben.locator("#link button", has_text="allow").click()
        ben.fill("#token", "not-the-token-at-all")
        ben.press("#token", "Enter")
        ben.locator("#token-answer", has_text="not the token").first.wait_for()
        ben.fill("#token", SECRET)
        ben.press("#token", "Enter")
        ben.fill("#why", "repaired")
        ben.fill("#who", "ben")
        ben.click("#go")
        ben.wait_for_selector("#confirm", state="hidden")
        ada.locator("#log", has_text="repaired").first.wait_for()
        assert client.link(link).decision == "none"


def test_a_job_has_a_line_for_each_plane_and_its_name_stays_text(file, tmp_path, opened):
    name = "<img src=x onerror=alert(1)>"
    with controller(file, tmp_path / "c.db") as (address, _), agent(address, "h0") as client:
        page = opened(f"{address}/")
        page.locator("#jobs", has_text="OPENMRC_JOB").wait_for()
        received = 0

        def drawn():
            nonlocal received
            received += 10**8
            goodput = [JobSeen(job=name, processes=3, received=[received, received // 2])]
            now = time.monotonic()
            client.report(
                Report(host="h0", boot=BOOT, sequence=round(now * 1e9), counted_s=now, goodput=goodput)
            )
            return page.locator("#job polyline").count() == 2

        assert eventually(drawn, 60)
        page.locator("#jobs button", has_text=name).click()
        page.locator("#jobs button[aria-pressed=true]", has_text=name).wait_for()
        assert "1 host, 3 processes" in page.locator("#jobs").inner_text()
        assert page.locator("#job .planes li").all_inner_texts()[1].startswith("plane 1 ")
        assert name in page.locator("#job svg").get_attribute("aria-label")
        assert page.locator("#jobs img, #job img").count() == 0


def test_a_link_of_a_large_fabric_is_seen_pointed_at_and_zoomed_to(tmp_path, opened):
    file = tmp_path / "large.yaml"
    file.write_text(
        "name: large\nhosts: 1024\nnic: {rate: 100G}\nplanes: 1\nswitch: {radix: 512}\n"
        "tiers: 2\nparallel_links: 1\n"
    )
    topology = Topology(Fabric.load(file))
    panel = next(each for each in topology.panels if each.tier == 0)
    assert (panel.rows, panel.columns) == (4, 256)
    link = topology.names[panel.first + 2 * 256 + 100]
    with controller(file, tmp_path / "c.db") as (address, _), operator(address) as client:
        page = opened(f"{address}/", viewport={"width": 700, "height": 900})
        outcome = client.act(Request(action=Action.DENY, what=link, why="to see it", who="ada"))
        assert outcome.done
        # What is above the map on a narrow page moves it.
        page.locator("#log", has_text="to see it").wait_for()
        canvas = page.locator(".plane canvas").first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box["width"] / 256 < 2, "a cell is smaller than what is drawn of it"

        def purple():
            return page.evaluate(
                """() => {
                    const canvas = document.querySelector('.plane canvas');
                    const size = [canvas.width, canvas.height];
                    const style = getComputedStyle(document.documentElement);
                    const hex = style.getPropertyValue('--denied').trim();
                    const [red, green, blue] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
                    const data = canvas.getContext('2d').getImageData(0, 0, ...size).data;
                    const found = [];
                    for (let at = 0; at < data.length; at += 4) {
                        if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) {
                            found.push([at / 4 % size[0], Math.floor(at / 4 / size[0])]);
                        }
                    }
                    return found;
                }"""
            )

        assert eventually(purple, 60)
        across, down = (sorted(each) for each in zip(*purple(), strict=True))
        assert across[-1] - across[0] >= 4
        assert down[-1] - down[0] >= 4
        # Beside its own cell, but on what is drawn of it.
        canvas.hover(position={"x": across[0] + 1, "y": (down[0] + down[-1]) / 2})
        page.locator("#tip", has_text=f"{link}: unknown, denied").wait_for()
        before = purple()
        page.click("#closer")
        page.wait_for_selector("canvas.zoomed")
        assert eventually(lambda: purple() != before, 60)
        first = page.evaluate("document.querySelector('.plane canvas').toDataURL()")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2 + 60, box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        assert eventually(
            lambda: page.evaluate("document.querySelector('.plane canvas').toDataURL()") != first, 60
        )
        assert page.locator("#link b").count() == 0, "a drag is no click"
        page.click("#whole")
        assert eventually(lambda: purple() == before, 60)
        canvas.click(position={"x": across[0] + 1, "y": (down[0] + down[-1]) / 2})
        page.wait_for_selector(f"#link b:text-is('{link}')")


def test_the_page_is_there_again_after_a_restart_and_works_by_keyboard(fabric, file, tmp_path, opened):
    database = tmp_path / "c.db"
    with controller(file, database) as (address, process):
        page = opened(f"{address}/", viewport={"width": 420, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits a narrow screen"
        page.press("body", "/")
        assert page.evaluate("document.activeElement.id") == "wanted"
        page.locator("canvas").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_selector("#link b")
        process.interrupt()
        assert process.wait() == 0
        page.wait_for_selector("#live.off")
    port = address.rpartition(":")[2]
    with controller(file, database, "--port", port) as (again, _):
        assert again == address
        page.wait_for_selector("#live.on")
