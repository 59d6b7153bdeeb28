"""What a person sees in a browser: the button and the tab on the task instance, and the run page behind both.

Needs Chromium and Playwright's Python package; without them it says so.
"""

from __future__ import annotations

import shutil

import pytest

from tests.e2e.gpu_rig import dag_source, gpu_rig

pytestmark = pytest.mark.slow

TASKS = r"""
GPUTrainingOperator(
    task_id="train", ssh_conn_id="gpu_box", retries=2, retry_policy=FailureClassRetryPolicy(),
    command='''
echo "<script>document.title=1</script>"
python3 -c 'raise ValueError("<img src=x onerror=document.title=2>")'
''')
"""


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("chromium is not installed here (Debian: chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def rig():
    with gpu_rig({"seen": dag_source("seen", TASKS)}) as started:
        yield started


@pytest.fixture(scope="module")
def run(rig):
    started = rig.trigger("seen")
    rig.api.wait_for_task("seen", started, "train", ["failed"], 120)
    return started


@pytest.fixture
def page(browser, rig):
    """A page of the viewer, who has logged in through Airflow's form."""
    context = browser.new_context(base_url=rig.airflow.url)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto("/auth/login")
    page.fill("input[name=username]", "viewer")
    page.fill("input[name=password]", rig.airflow.passwords["viewer"])
    page.click("button[type=submit]")
    page.wait_for_url(lambda url: "/login" not in url)
    yield page
    context.close()


def test_the_button_on_the_task_instance_opens_the_run_page(rig, run, page):
    page.goto(f"/dags/seen/runs/{run}/tasks/train/details")
    button = page.locator("a", has_text="GPU training run").first
    button.wait_for()
    address = button.get_attribute("href")

    page.goto(address)

    assert "FAILED" in page.get_by_test_id("state").inner_text()
    assert page.get_by_test_id("class").inner_text() == "traceback"
    assert page.get_by_test_id("domain").inner_text() == "user_code"
    assert "ValueError: <img src=x onerror=document.title=2>" in page.get_by_test_id("evidence").first.inner_text()
    assert "fail" in page.get_by_test_id("decision").inner_text()
    assert page.get_by_test_id("log").inner_text().endswith("/log")
    assert page.title() == "train: FAILED"
    assert page.locator("img, script").count() == 0


def test_the_tab_on_the_task_instance_shows_the_same_page(rig, run, page):
    """In a frame that Airflow sandboxes: the page needs no script."""
    page.goto(f"/dags/seen/runs/{run}/tasks/train")
    page.get_by_role("link", name="GPU training", exact=True).first.click()

    frame = page.frame_locator("iframe[title='GPU training']")

    frame.get_by_test_id("class").wait_for()
    assert frame.get_by_test_id("class").inner_text() == "traceback"


def test_whoever_is_not_logged_in_is_sent_to_the_login(rig, run, browser):
    context = browser.new_context(base_url=rig.airflow.url)
    try:
        page = context.new_page()
        page.goto(f"/gpualert/run?dag_id=seen&run_id={run}&task_id=train")

        page.locator("input[name=password]").wait_for()
        page.fill("input[name=username]", "viewer")
        page.fill("input[name=password]", rig.airflow.passwords["viewer"])
        page.click("button[type=submit]")

        page.get_by_test_id("class").wait_for()
    finally:
        context.close()
