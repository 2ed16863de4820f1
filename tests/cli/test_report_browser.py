"""The report in a real browser: what is shown, and that hostile tickets run nothing and fetch nothing."""

import contextlib
import csv
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slm_runtime.lines import MAX_RECORD_CHARS

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # CI is root in a container, where Chromium has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
DARK = "--blink-settings=preferredColorScheme=0"
LIMIT_S = 90
Browser = Callable[..., str]

ATTACKS = [
    '<script>document.title="pwned"</script>',
    "<img src=x onerror=\"document.title='pwned'\">",
    '<img src="SITE/leak.png"><link rel=stylesheet href="SITE/leak.css"><iframe src="SITE/leak"></iframe>',
    '</style><style>@import "SITE/leak.css"; body { background: url(SITE/leak.png) }</style>',
    "</title></svg></bdi></td></table><svg onload=\"document.title='pwned'\"><a xlink:href='javascript:0'>x</a></svg>",
    '<meta http-equiv="refresh" content="0;url=SITE/leak"><base href="SITE/">',
    '=HYPERLINK("SITE/leak","click me")',
    "bell \x07 null \x00 escape \x1b[2J bidi \u202egnp.exe\u2066 line\r\nbreak\ttab \u2028 \ufeff",
    "\x3c" * 200_000,
    "{{ 7*7 }}{% raw %} $\\frac{1}{2}$ &lt;b&gt; &#60;i&#62;",
]


@pytest.fixture(scope="module")
def browser() -> Browser:
    """Runs a headless browser on a page; what it wrote to standard output."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is on the PATH")

    def visit(url: str, folder: Path, *flags: str) -> str:
        command = [found, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return process.communicate(timeout=LIMIT_S)[0].decode("utf-8")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    return visit


@dataclass
class Site:
    """A web server on this machine that remembers what it was asked for."""

    url: str
    folder: Path
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            site.requests.append(self.path)

    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        site = Site(f"http://127.0.0.1:{server.server_port}", folder)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield site
        server.shutdown()


class Elements(HTMLParser):
    """The elements of a page: name and attributes; the text of headings, cells and title by element name."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {"title": [], "h1": [], "h2": [], "td": []}
        self._open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag in self.texts:
            self.texts[tag].append("")
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.found}

    def attributes(self, *names: str) -> list[str]:
        return [value for _, attrs in self.found for name, value in attrs.items() if name in names]


@pytest.fixture
def page(run, bundle: Path, site: Site) -> Path:
    """The report on the attacks, in the folder of the site."""
    csv.field_size_limit(MAX_RECORD_CHARS)
    tickets, out, report = (site.folder.parent / name for name in ("in.csv", "out.jsonl", "report.html"))
    with tickets.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "text", "gold"])
        for number, attack in enumerate(ATTACKS):
            text = attack.replace("SITE", site.url)
            writer.writerow([text[:200], text, text[:200] if number % 3 else "billing"])
    argv = ("-i", tickets, "-o", out, "--labels", "billing,<script>document.title='pwned'</script>,a\u202eb $x$")
    assert run("classify", bundle, *argv, "--max-tokens", 128).code == 0
    assert run("report", out, "-o", report, "--gold", "gold").code == 0
    return Path(shutil.copy(report, site.folder / "report.html"))


def test_hostile_tickets_are_shown_and_run_nothing(browser: Browser, page: Path, site: Site, tmp_path: Path) -> None:
    dom = Elements(browser(f"{site.url}/report.html", tmp_path, "--dump-dom"))
    assert dom.texts["title"] == ["Label report: out.jsonl"]
    assert dom.texts["h1"] == ["out.jsonl"]
    assert dom.texts["h2"][:3] == ["Key figures", "Against the gold labels", "Labels"]
    assert len(dom.texts["h2"]) == 8
    assert not dom.names & {"script", "img", "iframe", "base", "object", "embed", "form"}
    assert not [name for _, attrs in dom.found for name in attrs if name.startswith("on")]
    assert [link for link in dom.attributes("href", "src", "xlink:href") if not link.startswith(("#", "data:"))] == []
    assert sum(name == "style" for name, _ in dom.found) == 1
    cells = " ".join(dom.texts["td"])
    for attack in ATTACKS[:7]:
        assert attack.replace("SITE", site.url)[:200] in cells
    assert "[U+0007] null [U+0000] escape [U+001B][2J bidi [U+202E]gnp.exe[U+2066] line\u21b5 break\u21e5tab" in cells
    assert "200,000 characters" in cells
    assert ATTACKS[9] in cells


def test_the_page_asks_for_nothing(browser: Browser, page: Path, site: Site, tmp_path: Path) -> None:
    browser(f"{site.url}/report.html", tmp_path, f"--screenshot={tmp_path / 'page.png'}")
    assert site.requests == ["/report.html"]


def test_the_two_checks_above_can_fail(browser: Browser, site: Site, tmp_path: Path) -> None:
    attacks = "".join(ATTACKS[:3]).replace("SITE", site.url)
    (site.folder / "open.html").write_text(f"<!DOCTYPE html><title>t</title><body>{attacks}", encoding="utf-8")
    dom = Elements(browser(f"{site.url}/open.html", tmp_path, "--dump-dom"))
    assert dom.texts["title"] == ["pwned"]
    assert {"/leak.png", "/leak.css", "/leak"} <= set(site.requests)


def test_the_policy_of_the_page_stops_what_escaping_would_let_through(
    browser: Browser, page: Path, site: Site, tmp_path: Path
) -> None:
    attacks = "".join(ATTACKS[:3]).replace("SITE", site.url)
    page.write_text(page.read_text(encoding="utf-8").replace("<main>", f"<main>{attacks}"), encoding="utf-8")
    dom = Elements(browser(f"{site.url}/report.html", tmp_path, "--dump-dom"))
    assert "script" in dom.names
    assert dom.texts["title"] == ["Label report: out.jsonl"]
    assert site.requests == ["/report.html"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 500)])
def test_there_is_something_to_look_at(browser: Browser, page: Path, tmp_path: Path, scheme: str, width: int) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = tmp_path / "page.png"
    flags = [DARK] if scheme == "dark" else []
    browser(page.as_uri(), tmp_path, f"--screenshot={picture}", f"--window-size={width},3000", *flags)
    with image.open(picture) as opened:
        pixels = opened.convert("RGB")
    assert pixels.size == (width, 3000)
    assert picture.stat().st_size > 50_000
    colors = {color: count for count, color in pixels.getcolors(2**24)}
    background = max(colors, key=lambda color: colors[color])
    assert (sum(background) < 200) == (scheme == "dark")
    assert 0.3 < colors[background] / (width * 3000) < 0.99
    # Bars in the accent colour, which figures take from the style sheet.
    accent = (0x74, 0xA7, 0xF7) if scheme == "dark" else (0x2F, 0x6F, 0xD0)
    assert colors.get(accent, 0) > 1_000


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, page: Path, tmp_path: Path) -> None:
    frame = tmp_path / "phone.html"
    measure = "f => document.title = f.contentDocument.documentElement.scrollWidth"
    frame.write_text(
        f'<iframe src="{page.as_uri()}" width=400 height=2000 onload="({measure})(this)"></iframe>', encoding="utf-8"
    )
    dom = Elements(browser(frame.as_uri(), tmp_path, "--dump-dom", "--allow-file-access-from-files"))
    assert dom.texts["title"] == ["400"]
