"""Make docs/sample from a finished audit: python scripts/sample.py RUN (the report, and one picture for the README)."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

LABELS = ("Blank template (known)", "Reconstruction (from the gradient)", "True page (never seen)")
FILES = ("template.png", "reconstruction.png", "truth.png")


def picture(unit: Path, scale: int = 2, gap: int = 24, head: int = 34) -> Image.Image:
    """Template, reconstruction and truth of one unit side by side, labelled."""
    pages = [Image.open(unit / name).convert("RGB") for name in FILES]
    width, height = pages[0].width * scale, pages[0].height * scale
    sheet = Image.new("RGB", (3 * width + 4 * gap, height + head + gap), (238, 240, 243))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(18)
    for i, (page, label) in enumerate(zip(pages, LABELS, strict=True)):
        x = gap + i * (width + gap)
        pen.text((x, 8), label, font=font, fill=(30, 36, 46))
        sheet.paste(page.resize((width, height), Image.Resampling.LANCZOS), (x, head))
    return sheet


def main() -> None:
    """Copy the report and draw the picture of the first model's default attack."""
    run, out = Path(sys.argv[1]), Path(__file__).parents[1] / "docs" / "sample"
    out.mkdir(parents=True, exist_ok=True)
    pages = ["report.html", "results.json"]
    pages += [f"{part}/report.html" for part in ("released", "released-documents", "weights")]  # which it links to
    for name in pages:
        if (run / name).is_file():
            (out / name).parent.mkdir(exist_ok=True)
            text = (run / name).read_text().replace(str(run), run.name)  # no folder of this machine
            (out / name).write_text(text)
    picture(run / "units" / "donut-start--000--gi-dqa").save(out / "reconstruction.png", optimize=True)


if __name__ == "__main__":
    main()
