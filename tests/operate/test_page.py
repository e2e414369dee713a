"""The controller's page in Debian's Chromium: it names what breaks while it is open, and its actions work."""

import shutil
import time

import pytest

from openmrc.fabric import Fabric
from openmrc.operate.model import JobSeen, Report
from tests.helpers.controllers import BOOT, SECRET, agent, controller, operator, report_all
from tests.helpers.ends import eventually
from tests.helpers.labs import RING, specification

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
        first = next(each["first"] for each in info["panels"] if (each["plane"], each["tier"]) == (0, 0))
        pixel = page.evaluate(
            """number => {
                const canvas = document.querySelector('canvas');
                const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                const scale = 8, columns = canvas.width / scale;
                const [row, column] = [Math.floor(number / columns), number % columns];
                const at = 4 * ((row * scale + 2) * canvas.width + column * scale + 2);
                return [data[at], data[at + 1], data[at + 2]];
            }""",
            info["names"].index(link) - first,
        )
        assert pixel[0] > 180
        assert pixel[1] < 100


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
