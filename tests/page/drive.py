#!/usr/bin/env python3
"""Drives the page of `needle inside --html` in Chromium by its keys alone, and checks what a reader would trip over.

    drive.py PAGE OUT [--chromium PROGRAM]

At 1400 and 400 px, light and dark, each of the five views is opened and used; OUT gets a picture of each. Fails when the
page reports an error, grows wider than the window, draws text over text in the graph, has a control without a name, or
is slow. Needs Chromium and nothing but Python's own library: the socket of its DevTools is spoken below.
"""
import argparse
import base64
import itertools
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

SIZES = {1400: 1000, 400: 800}
THEMES = ("light", "dark")
LONGEST_LOAD, LONGEST_ANSWER = 2.0, 0.1
SMALLEST_CONTRAST = 4.5
CODES = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}

# Pairs of texts of the graph that touch, each pair once; only what is in sight counts.
OVERLAPS = """(() => {
  const texts = [...document.querySelectorAll('.canvas text')].filter(t => t.checkVisibility()).map(t => [t.textContent, t.getBoundingClientRect()]);
  const touching = [];
  texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
    if (p.left + 1 < q.right && q.left + 1 < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom) touching.push(a + ' / ' + b);
  }));
  return {texts: texts.length, touching};
})()"""

# Texts whose box is wider than the box of the graph that holds them.
CUT = """[...document.querySelectorAll('.canvas .box')].filter(box => {
  const frame = box.querySelector(':scope > rect').getBoundingClientRect();
  return [...box.querySelectorAll(':scope > text')].some(t => { const r = t.getBoundingClientRect();
    return r.left < frame.left - 1 || r.right > frame.right + 1 || r.top < frame.top - 1 || r.bottom > frame.bottom + 1; });
}).map(box => box.getAttribute('aria-label'))"""

# Points of edges inside of boxes that are neither of their ends: the edge would run through them.
THROUGH = """(() => {
  const hits = [];
  for (const edge of document.querySelectorAll('.canvas .edge')) {
    const boxes = [...edge.parentNode.children].filter(c => c.classList.contains('box')).map(b => [b, b.querySelector('rect').getBoundingClientRect()]);
    const length = edge.getTotalLength(), matrix = edge.getScreenCTM();
    for (let s = 2; s < length - 2; s += 8) {
      const p = edge.getPointAtLength(s).matrixTransform(matrix);
      const hit = boxes.find(([, r]) => p.x > r.left + 1 && p.x < r.right - 1 && p.y > r.top + 1 && p.y < r.bottom - 1);
      if (hit) { hits.push(hit[0].getAttribute('aria-label')); break; }
    }
  }
  return hits;
})()"""

NAMELESS = """[...document.querySelectorAll('button, input, select, [role=button], [role=listbox], [role=tab], [tabindex="0"]')].filter(e =>
  !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.labels?.length || e.textContent.trim())).map(e => e.outerHTML.slice(0, 80))"""

SMALL_TEXT = """[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.closest('script, style') &&
  [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.outerHTML.slice(0, 80))"""

# Least contrast between the text of what HTML shows and the nearest opaque background behind it.
CONTRAST = """(() => {
  const pen = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
  const known = new Map();
  const rgba = (colour) => {
    if (!known.has(colour)) {
      pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
      known.set(colour, [...pen.getImageData(0, 0, 1, 1).data]);
    }
    return known.get(colour);
  };
  const light = (c) => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  let least = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.closest('title')) continue;
    let back = [0, 0, 0, 0], style = getComputedStyle(e);
    const front = rgba(e instanceof SVGElement ? style.fill : style.color);
    const frame = e instanceof SVGElement && e.closest('.box')?.querySelector(':scope > rect');
    if (frame && e.parentNode === frame.parentNode && getComputedStyle(frame).fill !== 'none') back = rgba(getComputedStyle(frame).fill);
    for (let up = e; up && back[3] < 255; up = up.parentElement) back = rgba(getComputedStyle(up).backgroundColor);
    if (back[3] < 255) continue;
    const [a, b] = [light(front), light(back)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, e.outerHTML.slice(0, 100)];
  }
  return least;
})()"""


class Socket:
    """The client's side of a WebSocket, as far as DevTools needs it: text messages, no extensions."""

    def __init__(self, address):
        host, port, path = re.fullmatch(r"ws://([^:/]+):(\d+)(/.*)", address).groups()
        self.stream = socket.create_connection((host, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream.sendall((f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.pending = b""
        while b"\r\n\r\n" not in self.pending:
            self.pending += self.stream.recv(65536)
        head, self.pending = self.pending.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(head.decode())

    def take(self, count):
        while len(self.pending) < count:
            got = self.stream.recv(1 << 20)
            if not got:
                raise ConnectionError("Chromium closed the connection")
            self.pending += got
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        length = struct.pack("!B", 0x80 | size) if size < 126 else struct.pack("!BH", 0xFE, size) if size < 65536 else struct.pack("!BQ", 0xFF, size)
        self.stream.sendall(b"\x81" + length + mask + bytes(byte ^ key for byte, key in zip(data, itertools.cycle(mask))))

    def receive(self):
        message = b""
        while True:
            first, second = self.take(2)
            size = second & 0x7F
            if size >= 126:
                size = int.from_bytes(self.take(2 if size == 126 else 8), "big")
            data = self.take(size)
            if first & 0x0F in (0, 1):  # text, perhaps in several frames; pings and the rest need no answer here
                message += data
                if first & 0x80:
                    return message.decode()


class Page:
    """One page of one Chromium: what the DevTools protocol can do, in the words that the checks need."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
             f"--user-data-dir={self.folder.name}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        told = pathlib.Path(self.folder.name, "DevToolsActivePort")
        until = time.monotonic() + 60
        while not (told.exists() and "\n" in told.read_text()):
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError(f"{program} did not start")
            time.sleep(0.1)
        port = told.read_text().split("\n")[0]
        targets = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list"))
        self.socket = Socket(next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page"))
        self.count, self.events, self.errors = 0, [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def read(self):
        message = json.loads(self.socket.receive())
        method, detail = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            thrown = detail["exceptionDetails"]
            self.errors.append(thrown.get("exception", {}).get("description", thrown["text"]))
        elif method == "Log.entryAdded" and detail["entry"]["level"] == "error":
            self.errors.append(detail["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not detail["request"]["url"].startswith(("file:", "data:")):
            self.errors.append("asked the network for " + detail["request"]["url"])
        if method:
            self.events.append(method)
        return message

    def call(self, method, **parameters):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            message = self.read()
            if message.get("id") == self.count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    def tell(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{result['exceptionDetails']['exception']['description']} in {expression[:200]}")
        return result["result"].get("value")

    def open(self, address):
        self.call("Page.navigate", url="about:blank")
        self.settle()
        self.events.clear()
        self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self.events:
            self.read()
        self.settle()
        return self.tell("performance.timing.loadEventEnd - performance.timing.navigationStart") / 1000

    def settle(self):
        self.tell("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def look(self, width, height, theme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def press(self, key, modifiers=0):
        detail = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": CODES.get(key, ord(key[0].upper())),
                  "code": key if key in CODES and key != " " else ""}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **detail, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **detail)

    def type(self, text):
        for letter in text:
            self.press(letter)

    def focus(self):
        return self.tell("(e => e.getAttribute('aria-label') || e.textContent.trim() || e.tagName)(document.activeElement)")

    def tab_to(self, wanted, most=80):
        """Presses Tab until what has the focus is called so; a trap or a control out of reach fails here."""
        for _ in range(most):
            self.press("Tab")
            if re.match(wanted, self.focus()):
                return
        raise RuntimeError(f"Tab does not reach {wanted!r}")

    def picture(self, path, whole=True):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 2600), "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, **({"clip": clip} if whole else {}))
        path.write_bytes(base64.b64decode(shot["data"]))


class Checks:
    def __init__(self):
        self.failed = 0

    def tell(self, good, name, detail):
        self.failed += not good
        print(f"{'ok' if good else 'FAILED':6}  {name:44}  {detail}", flush=True)


def first_few(found, none="none"):
    return none if not found else f"{len(found)}: " + "; ".join(map(str, found[:3]))


def use(page, view):
    """Does in a view what a reader would do there, with keys. Yields the name of each state worth a look."""
    page.press("12345"[("graph", "motion", "op", "number", "training").index(view)])
    page.settle()
    yield view
    if view == "graph":
        page.press("/")
        page.settle()
        page.type("gelu")
        yield "graph-search"
        page.press("Enter")   # opens the way to the op
        page.press("Enter")   # and its definition
        yield "graph-definition"
        page.tab_to("Backward")
        page.press(" ")
        page.tab_to("Unfold one level")
        for _ in range(3):
            page.press("Enter")
        yield "graph-unfolded-backward"
        page.tab_to("graph;")
        page.press("ArrowRight")
        page.press("+")
        page.press("Tab")
        page.press("ArrowDown")
        page.press("Escape")
        page.press("Tab", 8)
        page.tab_to("Backward")
        page.press(" ")
        yield "graph-unfolded"
        page.tab_to("Fold all")
        page.press("Enter")
    elif view == "motion":
        page.tab_to("event$")
        for _ in range(40):
            page.press("ArrowRight")
        yield "motion-later"
        if page.tell("document.querySelector('.curve') !== null"):
            page.tab_to("to backward")
            page.press("Enter")
            page.press("Tab")
        page.press("/")
        page.settle()
        page.type("attention")
        page.press("Enter")
        yield "motion-inside"
        page.press("2")
    elif view == "op":
        page.tab_to("ops")
        for _ in range(8):
            page.press("ArrowDown")
        yield "op-other"
    elif view == "number" and page.tell("document.querySelector('#view-number .chooser') !== null"):
        page.tab_to("numbers")
        page.press("ArrowDown")
        page.tab_to("Follow the largest")
        page.press("Enter")
        yield "number-to-the-loss"
    elif view == "training" and page.tell("document.querySelector('#view-training .cells') !== null"):
        page.tab_to(".*arrow keys tell values")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            page.press(key)
        yield "training-cell"


def beyond_views(page, address):
    """What no view shows by itself: (name, whether it works)."""
    selected = "document.querySelector('[role=tab][aria-selected=true]').textContent"
    for hash, tab, wanted in (("op=7", "One op", "document.querySelector('#view-op h2').textContent.endsWith(' 7')"),
                              ("graph=op7", "The graph", "document.querySelector('aside h2').textContent.endsWith(' 7')"),
                              ("motion=9", "In slow motion", "document.querySelector('[aria-label=event]').value === '9'"),
                              ("nonsense=%3C", "The graph", "true")):
        page.open(f"{address}#{hash}")
        yield f"the address keeps #{hash}", page.tell(selected) == tab and page.tell(wanted)
    page.open(address)
    moved = "document.querySelector('.canvas > g').getAttribute('transform')"
    corner = page.tell("(r => [r.left + 40, r.top + 40])(document.querySelector('.canvas').getBoundingClientRect())")
    for name, steps in (("dragging", (("mousePressed", 0, 0), ("mouseMoved", 9, 9), ("mouseMoved", 60, 30), ("mouseReleased", 60, 30))),
                        ("the wheel", (("mouseWheel", 0, 0),))):
        before = page.tell(moved)
        for kind, x, y in steps:
            wheel = {"deltaX": 0, "deltaY": -90} if kind == "mouseWheel" else {"button": "left", "buttons": 1, "clickCount": 1}
            page.call("Input.dispatchMouseEvent", type=kind, x=corner[0] + x, y=corner[1] + y, **wheel)
        page.settle()
        yield f"{name} moves the graph", page.tell(moved) != before
    page.press("?")
    opened = page.tell("document.querySelector('dialog').open")
    page.press("Escape")
    yield "? shows the keys, Escape hides them", opened and not page.tell("document.querySelector('dialog').open")
    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.tell(paper)
    page.tab_to("Light or dark")
    page.press("Enter")
    yield "light or dark can be chosen", page.tell(paper) != before
    page.tab_to("The graph")
    for _ in range(4):
        page.press("ArrowRight")
    yield "arrow keys go from tab to tab", page.tell(selected) == "Training"


# How long a click or key takes until the next frame is ready to be shown.
ANSWER = """new Promise(done => { const start = performance.now(); %s; requestAnimationFrame(() => setTimeout(() => done((performance.now() - start) / 1000))); })"""
CLICKS = {
    "unfold one level more": "[...document.querySelectorAll('button')].find(b => b.textContent.startsWith('Unfold')).click()",
    "unfold the next level": "[...document.querySelectorAll('button')].find(b => b.textContent.startsWith('Unfold')).click()",
    "unfold the last level": "[...document.querySelectorAll('button')].find(b => b.textContent.startsWith('Unfold')).click()",
    "turn backward": "[...document.querySelectorAll('button')].find(b => b.textContent === 'Backward').click()",
    "fold all": "[...document.querySelectorAll('button')].find(b => b.textContent === 'Fold all').click()",
    "unfold one module": "document.querySelector('.module')?.dispatchEvent(new MouseEvent('click', {bubbles: true}))",
    "open slow motion": "document.getElementById('tab-motion').click()",
    "one event on": "document.querySelector('[aria-label=\"one event forward\"]')?.click()",
    "open one op": "document.getElementById('tab-op').click()",
    "choose an op": "document.querySelector('#ops-7')?.click()",
    "open one number": "document.getElementById('tab-number').click()",
    "choose a number": "document.querySelector('#numbers-1')?.click()",
    "open training": "document.getElementById('tab-training').click()",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--chromium", default="chromium")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    address = arguments.page.resolve().as_uri()
    checks, page = Checks(), Page(arguments.chromium)
    try:
        for (width, height), theme in itertools.product(SIZES.items(), THEMES):
            page.look(width, height, theme)
            page.errors.clear()
            load = page.open(address)
            checks.tell(load < LONGEST_LOAD, f"{width} px, {theme}: load time", f"{load:.2f} s")
            wide, touching, cut, through, nameless, small, texts, states = [], [], [], [], [], [], 0, 0
            contrast = [99, ""]
            for view in ("graph", "motion", "op", "number", "training"):
                for state in use(page, view):
                    page.settle()
                    states += 1
                    overflow = page.tell("document.documentElement.scrollWidth - innerWidth")
                    if overflow > 0:
                        wide.append(f"{state} by {overflow} px")
                    overlaps = page.tell(OVERLAPS)
                    texts += overlaps["texts"]
                    touching += [f"{state}: {pair}" for pair in overlaps["touching"]]
                    cut += [f"{state}: {name}" for name in page.tell(CUT)]
                    through += [f"{state}: {name}" for name in page.tell(THROUGH)]
                    nameless += page.tell(NAMELESS)
                    small += page.tell(SMALL_TEXT)
                    contrast = min(contrast, page.tell(CONTRAST), key=lambda pair: pair[0])
                    page.picture(arguments.out / f"{state}-{width}-{theme}.png")
            name = f"{width} px, {theme}: "
            checks.tell(not page.errors, name + "errors", first_few(page.errors))
            checks.tell(not wide, name + "wider than the window", first_few(wide, f"none of {states} states"))
            checks.tell(not touching, name + "text over text in the graph", first_few(touching, f"none of {texts} texts"))
            checks.tell(not cut, name + "text wider than its box", first_few(cut))
            checks.tell(not through, name + "edges through boxes", first_few(through))
            checks.tell(not nameless, name + "controls without a name", first_few(nameless))
            checks.tell(not small, name + "text below 12 px", first_few(small))
            checks.tell(contrast[0] >= SMALLEST_CONTRAST, name + "least contrast of text",
                        f"{contrast[0]:.1f}" + (f" {contrast[1]}" if contrast[0] < SMALLEST_CONTRAST else ""))
        page.look(1400, 1000, "light")
        page.errors.clear()
        for name, works in beyond_views(page, address):
            checks.tell(works, name, "yes" if works else "no")
        checks.tell(not page.errors, "errors at that", first_few(page.errors))
        took = {}
        for _ in range(3):  # the quickest of three, since other programs run here too
            page.open(address)
            for name, click in CLICKS.items():
                took[name] = min(took.get(name, 99), page.tell(ANSWER % click))
        for name, quickest in took.items():
            checks.tell(quickest < LONGEST_ANSWER, f"answer: {name}", f"{quickest * 1000:.0f} ms")
    finally:
        page.close()
    print(f"{checks.failed} failed" if checks.failed else "all passed")
    return checks.failed > 0


if __name__ == "__main__":
    sys.exit(main())
