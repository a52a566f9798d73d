"""Opens pages in a real browser, and prints what it saw of each as JSON. Runs in `.venv-peer-browser`.

    .venv-peer-browser/bin/python benchmarks/peers/browser.py CHROMIUM PICTURES PAGE ...

CHROMIUM is the browser's program, PICTURES a folder for what it drew. Every page is opened at three widths, in light
and in dark, and printed.
"""

import json
import os
import re
import sys
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

WIDTHS = (360, 800, 1280)
SCHEMES = ("light", "dark")


def main(chromium: str, pictures: str, *pages: str) -> None:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        print(json.dumps({page: seen(browser, Path(page), Path(pictures)) for page in pages}))
        browser.close()


def seen(browser: Browser, path: Path, pictures: Path) -> dict:
    views = [view(browser, path, pictures, width=width, scheme=scheme) for width in WIDTHS for scheme in SCHEMES]
    return {"bytes": path.stat().st_size, "views": views, "sheets": sheets(browser, path, pictures)}


def view(browser: Browser, path: Path, pictures: Path, *, width: int, scheme: str) -> dict:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda problem: said.append(f"error: {problem}"))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri(), wait_until="load")
    opened = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    page.screenshot(path=pictures / f"{path.stem}-{width}-{scheme}.png", full_page=True)
    found = {
        "width": width,
        "scheme": scheme,
        "console": said,
        "asked_elsewhere": [url for url in asked if url != path.as_uri()],
        "open_milliseconds": opened,
        "wider_than_the_window": page.evaluate("document.documentElement.scrollWidth > window.innerWidth"),
        "first_focus": tabbed(page),
        **checked(page),
    }
    context.close()
    return found


def checked(page: Page) -> dict:
    """Checks the page by all rules of axe-core; the policy of the page forbids scripts, but not those of a debugger."""
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = Axe().run(page).response

    def told(kind: str) -> list[str]:
        return [
            f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:120]} x {len(one['nodes'])}"
            for one in found[kind]
        ]

    return {
        "violations": told("violations"),
        "undecided": told("incomplete"),
        "rules_passed": [one["id"] for one in found["passes"]],
    }


def tabbed(page: Page) -> str:
    """Returns what the first press of the Tab key reaches."""
    page.keyboard.press("Tab")
    return page.evaluate("document.activeElement.textContent.trim().slice(0, 40)")


def sheets(browser: Browser, path: Path, pictures: Path) -> int:
    """Returns the sheets of A4 paper, printed as the page wants it."""
    page = browser.new_page()
    page.goto(path.as_uri())
    printed = page.pdf(path=pictures / f"{path.stem}.pdf", prefer_css_page_size=True, print_background=True)
    page.close()
    return len(re.findall(rb"/Type\s*/Page\b", printed))


if __name__ == "__main__":
    main(*sys.argv[1:])
