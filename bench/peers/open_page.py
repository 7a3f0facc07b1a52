"""Open pages in a headless Chromium and measure them. For `bench/view.py`.

    $ echo '[{"url": "http://127.0.0.1:8600/", "marker": "run-0001", "seconds": 30}]' | python open_page.py

For each page, in a browser context of its own: the milliseconds from the request until the marker is in the page's
text, the heap of its JavaScript, the nodes of its document, and the bytes that came over the network. A page that never
shows its marker says so.
"""

import json
import shutil
import sys
import time
from typing import Any

from playwright.sync_api import Error, sync_playwright


def measure_page(browser: Any, url: str, marker: str, seconds: float) -> dict[str, Any]:
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("Network.enable")
    received = [0]
    session.on("Network.dataReceived", lambda event: received.__setitem__(0, received[0] + event["dataLength"]))
    began = time.perf_counter()
    try:
        page.goto(url, timeout=seconds * 1000, wait_until="commit")
        page.wait_for_function(
            "marker => document.body && document.body.innerText.includes(marker)", arg=marker, timeout=seconds * 1000
        )
        shown = 1000 * (time.perf_counter() - began)
    except Error as error:
        shown, problem = None, str(error).splitlines()[0]
    else:
        problem = ""
    session.send("HeapProfiler.collectGarbage")
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return {
        "ms": shown,
        "problem": problem,
        "heap_mb": metrics["JSHeapUsedSize"] / 1e6,
        "nodes": metrics["Nodes"],
        "received_mb": received[0] / 1e6,
    }


def main() -> None:
    pages = json.load(sys.stdin)
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        measure_page(browser, "about:blank", "", 30)  # the browser itself takes a while the first time
        print(json.dumps([measure_page(browser, **page) for page in pages]))
        browser.close()


if __name__ == "__main__":
    main()
