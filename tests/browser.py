"""Pages of the site in a browser, for the tests that open them."""

from urllib.parse import urlparse

from lib.book import page as chapters

PAGES = [page.name for page in chapters.pages()]
CHAPTERS = [page.name for page in chapters.chapters()]
AXE = """([within, options]) =>
    axe.run(document.querySelector(within), {preload: false, resultTypes: ['violations'], ...options})
        .then(found => found.violations.filter(rule => ['serious', 'critical'].includes(rule.impact))
            .flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 160)}`)))"""


def opened(browser, **options):
    """A page at desktop width that remembers its errors and what it asked for."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
    page.problems, page.requests = [], []
    page.on("console", lambda message: message.type == "error" and page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("response", lambda response: response.status >= 400 and page.problems.append(response.url))
    page.on("request", lambda request: page.requests.append(urlparse(request.url)))
    return page


def axe(page, within="article.bd-article", **options):
    """The serious findings of axe in a part of a page."""
    from axe_playwright_python.base import AXE_SCRIPT

    page.evaluate(AXE_SCRIPT)
    return page.evaluate(AXE, [within, options])


def hosts(page):
    return {request.netloc for request in page.requests} - {""}


def typeset(page):
    """Wait for MathJax, where the page has mathematics."""
    page.wait_for_function("() => !document.querySelector('.math') || document.querySelector('mjx-container')")
    page.evaluate("() => window.MathJax?.startup?.promise")
