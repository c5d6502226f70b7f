"""A page in a browser: it loads without errors, search finds, a click tells the reason."""

import json
import shutil

import page_parts
import planted
import pytest

from tvm_fusion.report.explain import explained
from tvm_fusion.report.page.document import write
from tvm_fusion.report.page.explanation import explanation_content

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
MANY = 3000


@pytest.fixture(scope="module")
def browser():
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs Chromium and its driver (Debian: chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.chrome.service.Service(driver)
    with webdriver.Chrome(options=options, service=service) as opened:
        yield opened


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page, wait until its graph is there, and require that nothing was complained of."""

    def show(content, fragment=""):
        write(tmp_path / "page.html", content)
        browser.get("about:blank")
        browser.get(f"file://{tmp_path}/page.html{fragment}")
        waited(browser, "return document.body.dataset.ready")
        return browser

    yield show
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def waited(browser, script):
    """Wait until a script returns something true."""
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, 120).until(lambda one: one.execute_script(script))


def find(browser, selector):
    return browser.find_elements("css selector", selector)


def click(browser, selector):
    """Click an element of the graph as the pointer does."""
    from selenium.webdriver import ActionChains

    (element,) = find(browser, selector)
    ActionChains(browser).move_to_element(element).click().perform()


@pytest.fixture(scope="module")
def content():
    with pytest.MonkeyPatch.context() as patch:
        planted.plant(patch)
        found = explained(page_parts.two_products(), stock=False, rewrites=True)
    return json.loads(json.dumps(explanation_content(found)))


def test_a_click_on_a_group_shows_operators_price_and_kernel(opened, content):
    browser = opened(content)
    assert len(find(browser, ".node.group")) == 2
    click(browser, '.nodes [data-id="g0"]')
    text = find(browser, "#panel article")[0].text
    assert "matmul + relu" in text
    assert f"({content['groups'][0]['source']})" in text
    name = content["groups"][0]["kernels"][0]
    source = "document.querySelector('pre.source').textContent"
    waited(browser, f"return {source}.includes('def {name}(')")
    find(browser, ".kernel nav button")[1].click()
    waited(browser, f"return {source}.includes('{name}:')")
    assert browser.current_url.endswith("#after/g0")


def test_a_click_on_an_edge_shows_the_reason(opened, content):
    browser = opened(content)
    click(browser, '[data-id="g0-g1"] .hit')
    article = find(browser, "#panel article")[0].text
    assert "Not fused" in article
    assert content["edges"][1]["sentence"] in article


def test_an_edge_inside_of_a_kernel_tells_why_it_is_fused(opened, content):
    browser = opened(content, "#operators")
    click(browser, '[data-id="e0"] .hit')
    article = find(browser, "#panel article")[0].text
    assert content["edges"][0]["sentence"] in article
    assert "Not fused" not in article


def test_search_finds_and_selects(opened, content):
    from selenium.webdriver.common.keys import Keys

    content["operators"][2]["names"] = ["/encoder/layer.3/attention"]
    browser = opened(content)
    find(browser, "body")[0].send_keys("/")
    box = browser.switch_to.active_element
    box.send_keys("/encoder/layer.3*")
    assert [li.text.splitlines()[0] for li in find(browser, "#found li:not(.note)")] == ["matmul"]
    assert len(find(browser, ".node.dimmed")) == 1
    box.send_keys(Keys.ENTER)
    assert browser.current_url.endswith("#after/g1")
    assert "/encoder/layer.3/attention" in find(browser, "#panel article")[0].text


def test_keys_go_along_edges(opened, content):
    from selenium.webdriver.common.keys import Keys

    browser = opened(content, "#before/m0")
    stage = find(browser, "#stage")[0]
    stage.send_keys(Keys.ARROW_DOWN)
    assert browser.current_url.endswith("#before/m1")
    stage.send_keys(Keys.ARROW_UP, Keys.ESCAPE)
    assert browser.current_url.endswith("#before")


def test_markup_in_names_is_text(opened, content):
    name = "<img src=x onerror=alert(1)><b id=planted>"
    content["model"] = name
    for item in (*content["operators"], *content["imported"]["nodes"]):
        item["title"] = item["variable"] = name
    content["notes"] = [name]
    browser = opened(content)
    assert find(browser, "#model")[0].text == name
    assert find(browser, "#planted") == []
    click(browser, '.nodes [data-id="g0"]')
    assert name in find(browser, "#panel article")[0].text
    assert find(browser, "#planted") == []


def test_thousands_of_operators(opened, content):
    """Blocks of twelve with skips of any length, all of them in one reader's time."""
    titles = ["conv2d", "add", "relu", "matmul"]
    nodes = [
        {"variable": f"v{i}", "title": titles[i % 4], "type": "float32[1]", "function": "main"}
        for i in range(MANY)
    ]
    edges = [(i - 1, i) for i in range(1, MANY)]
    edges += [(i, i + 9) for i in range(0, MANY - 12, 12)]
    edges += [(i, MANY - 1 - i) for i in range(0, MANY // 2 - 50, 120)]
    edges += [(3, i) for i in range(24, MANY, 60)]
    content["imported"] = {"nodes": nodes, "edges": edges}
    browser = opened(content, "#before")
    assert find(browser, "#busy")[0].get_attribute("hidden")
    assert len(find(browser, ".nodes > *")) < 20  # from afar a path for each type
    find(browser, "#search")[0].send_keys(f"v{MANY - 1}\n")
    assert browser.current_url.endswith(f"#before/m{MANY - 1}")
    assert len(find(browser, ".node.selected")) == 1
    assert len(find(browser, ".node")) < 600  # what is on the screen


def test_time_of_modules(opened, content):
    for operator, name in zip(content["operators"], ("a.b", "a.c", "d.e"), strict=True):
        operator["names"] = [name]
    browser = opened(content, "#after/modules")
    rows = find(browser, "#panel summary b")
    assert sorted(row.text for row in rows) == ["a", "d.e"]
    next(row for row in rows if row.text == "a").click()
    waited(browser, "return document.querySelector('#panel details[open] button.link')").click()
    waited(browser, "return document.querySelector('.node.dimmed')")
    assert [node.get_attribute("data-id") for node in find(browser, ".node.dimmed")] == ["g1"]


def test_modules_open_and_close(opened, content):
    from selenium.webdriver.common.keys import Keys

    for operator, name in zip(content["operators"], ("a.b", "a.b", "c.d"), strict=True):
        operator["names"] = [name]
    content["groups"] *= (
        3  # operators belong to the first two; the others are kernels of one module
    )
    content["groups"] = [{**group, "names": None} for group in content["groups"]]
    for number, group in enumerate(content["groups"][2:]):
        group.update(operators=[], names=[f"far.off.{number}"])
    browser = opened(content, "#modules")
    shown = lambda: {node.get_attribute("data-id") for node in find(browser, ".node")}  # noqa: E731
    (module,) = find(browser, ".boxes .module")
    assert shown() == {module.get_attribute("data-id"), *(f"g{i}" for i in range(6))}
    click(browser, '.nodes [data-id="g2"]')
    find(browser, "#stage")[0].send_keys(Keys.ESCAPE)
    browser.execute_script(f"location.hash = '#modules/{module.get_attribute('data-id')}'")
    waited(browser, "return document.querySelector('.module.selected')")
    assert "far.off" in find(browser, "#panel article")[0].text
    find(browser, "#stage")[0].send_keys(Keys.ENTER)
    waited(browser, "return document.querySelectorAll('.node').length === 3")
    assert "4 groups" in find(browser, ".nodes .module")[0].text
    find(browser, "#search")[0].send_keys("far.off.3\n")
    waited(browser, "return document.querySelector('.node.group.selected')")
    assert len(shown()) == 7
