"""docs/images/screen.svg and report.png: the screen of a running quickstart, and the top of its report.

    python -m benchmarks.pictures [FOLDER]

Runs the quickstart in FOLDER (a temporary one if not given) in a terminal of 80 columns, keeps the screen once SHARE
per cent of the sweep are done, and photographs report.html with Chromium (Debian: chromium, chromium-driver). Both show
what the programs drew, except that the report's line of origin calls this machine "laptop".
"""

import argparse
import fcntl
import io
import itertools
import os
import pty
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pyte
from PIL import Image
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.style import Style
from rich.text import Text
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

IMAGES = Path(__file__).parents[1] / "docs/images"
COLUMNS, LINES, SHARE = 80, 20, 60
_COLOURS = {"default": None, "brown": "yellow"}
_FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)


def run(command: list[str], folder: Path) -> tuple[Text, str]:
    """The screen of a command at the first drawing with at least SHARE per cent, and its standard output.

    Raises:
        SystemExit: the command failed, or its screen never showed that share.
    """
    screen, picture = pyte.Screen(COLUMNS, LINES), None
    stream = pyte.ByteStream(screen)
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=folder, stdin=inside, stdout=out, stderr=inside, env=environment)
        os.close(inside)
        while True:
            try:
                content = os.read(terminal, 65_536)
            except OSError:  # the command has ended
                break
            if not content:
                break
            stream.feed(content)
            text = "\n".join(screen.display)
            shares = re.findall(r"━ +(\d+) %\s*$", text, re.MULTILINE)
            if picture is None and shares and int(shares[0]) >= SHARE and "leaders by" in text:
                picture = text_of(screen)
        code = process.wait()
        out.seek(0)
        output = out.read()
    if code or picture is None:
        raise SystemExit(
            f"the command ended with exit code {code}; screen {'kept' if picture else 'not seen'}\n{output}"
        )
    return picture, output


def text_of(screen: pyte.Screen) -> Text:
    """The lines of a terminal with their colours."""
    text = Text()
    for number in range(LINES):
        characters = [screen.buffer[number][column] for column in range(COLUMNS)]
        for (colour, bold), group in itertools.groupby(characters, lambda each: (each.fg, each.bold)):
            name = _COLOURS.get(colour, colour)
            if name is not None and re.fullmatch("[0-9a-f]{6}", name):
                name = f"#{name}"
            text.append("".join(each.data for each in group), Style(color=name, bold=bold))
        text.append("\n")
    text.rstrip()
    return text


def save_screen(text: Text, path: Path) -> None:
    """Draw a terminal's text as SVG, in the reader's own monospaced font."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(text, end="")
    drawing = console.export_svg(
        title="python -m orchestrator.sweep", code_format=_FONT_FACES.sub("", CONSOLE_SVG_FORMAT), unique_id="screen"
    )
    path.write_text("\n".join(line.rstrip() for line in drawing.splitlines()) + "\n", encoding="utf-8")


def photograph(page: Path, path: Path) -> None:
    """Save the top of a page as PNG, once its charts are drawn."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1480"):
        options.add_argument(flag)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / page.name
        html = page.read_text(encoding="utf-8").replace(f" · {socket.gethostname()} · ", " · laptop · ")
        copy.write_text(html, encoding="utf-8")
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.get(copy.as_uri())
            idle = "return Bokeh.documents.length > 0 && Bokeh.documents.every(each => each.is_idle)"
            WebDriverWait(driver, 60).until(lambda driver: driver.execute_script(idle))
            drawing = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            drawing.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
        finally:
            driver.quit()


def main() -> None:
    """Take both pictures, and print what the quickstart printed at its end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description="Pictures of the quickstart.")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--sweep", nargs="*", default=[], metavar="FILE or key=value", help="another sweep")
    parser.add_argument("--out", type=Path, default=IMAGES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.folder or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        text, output = run([sys.executable, "-m", "orchestrator.sweep", "--local", *arguments.sweep], folder)
        print(output)
        (page,) = folder.glob("results/*/report/report.html")
        save_screen(text, arguments.out / "screen.svg")
        photograph(page, arguments.out / "report.png")


if __name__ == "__main__":
    main()
