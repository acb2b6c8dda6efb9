"""Overview: what `info --json` says, drawn; and its words where there is nothing to show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3data import open_dataset
from eagle3data.readers.overview import overview
from eagle3data.schema.digest import json_digest
from eagle3data.storage import layout
from eagle3data.view.depth import depth_drawing
from tests.support import random_samples, small_manifest, write_set
from tests.view.conftest import Client, Open
from tests.view.serving import facts

HOSTILE = "<script>alert(1)</script><img src=http://example.org/a onerror=alert(2)>\"'"


def test_numbers_are_those_of_info(states: str, client: Client) -> None:
    known = overview(open_dataset(states))
    page = client(states).get("/")
    assert page.status_code == 200
    assert facts(page.text) == {
        **{name: str(known[name]) for name in ("samples", "tokens", "loss_tokens", "bytes")},
        "objects": str(known["objects"]),
        "committed": str(known["shards"]["committed"]),
        "planned": str(known["shards"]["planned"]),
        "state_bytes": str(known["arithmetic"]["state_bytes"]),
    }
    for layer, sglang in ((2, 1), (15, 14), (27, 26), (30, 29)):
        assert f'<td class="n">{layer}</td>' in page.text
        assert f"<td>{sglang}</td>" in page.text
    assert "before the final norm" in page.text


def test_names_are_text(tmp_path: Path, client: Client) -> None:
    manifest = small_manifest()
    target = manifest.target.model_copy(update={"name": HOSTILE, "architecture": HOSTILE})
    hostile = manifest.model_copy(update={"target": target})
    page = client(write_set(tmp_path / "set", random_samples(3, manifest), hostile)).get("/")
    assert page.status_code == 200
    assert "&lt;script&gt;" in page.text
    assert "<script>alert" not in page.text
    assert "<img src=http" not in page.text


def test_layers_without_the_final_one_are_flagged(tmp_path: Path, client: Client) -> None:
    manifest = small_manifest(layers=[0, 2, 11])
    url = write_set(tmp_path / "set", random_samples(3, manifest), manifest)
    page = client(url).get("/").text
    assert "the final layer 12 is not captured" in page
    assert "the embeddings" in page


def test_labels_of_neighbours_stand_apart() -> None:
    drawing = depth_drawing(small_manifest(layers=[2, 10, 11, 12]), 200)
    heights = [piece.split('"')[0] for piece in drawing.split('text-anchor="middle"')[0:4]]
    assert len(heights) == 4
    assert 'y="18"' in drawing
    assert 'y="78"' in drawing


def test_another_version_is_said(copied: Path, client: Client) -> None:
    visitor = client(str(copied))
    assert visitor.get("/").status_code == 200
    group = copied / "zarr.json"
    document = json.loads(group.read_text())
    document["attributes"][layout.MANIFEST]["version"] = "7.0"
    digest = json_digest(document["attributes"][layout.MANIFEST])
    document["attributes"][layout.MANIFEST_DIGEST] = digest
    group.unlink()
    group.write_text(json.dumps(document))
    page = client(str(copied)).get("/")
    assert page.status_code == 503
    assert "format version 7.0, this eagle3data reads up to 1.x" in page.text


def test_no_set_there(tmp_path: Path, client: Client) -> None:
    page = client(str(tmp_path)).get("/")
    assert page.status_code == 503
    assert "holds no data set" in page.text
    assert "Traceback" not in page.text


def test_a_damaged_index_is_said_and_its_repair_is_seen(copied: Path, client: Client) -> None:
    part = copied / "index" / "00000000.arrow"
    whole = part.read_bytes()
    (copied / layout.ALL_PARTS).unlink()
    part.write_bytes(whole[:200])
    visitor = client(str(copied))
    assert "is not a whole Arrow file" in visitor.get("/").text
    part.write_bytes(whole)
    assert visitor.get("/").status_code == 200


@pytest.mark.parametrize("width", [390, 1600])
def test_in_a_browser(states: str, opened: Open, width: int) -> None:
    visit = opened(states, width=width)
    dataset = open_dataset(states)
    assert visit.fact("tokens") == str(dataset.tokens)
    assert visit.text("#fact-tokens") == f"{dataset.tokens:,}"
    assert visit.count(".depth:visible") == 1
    assert visit.count(".depth:visible .taken") == 4
    assert visit.drawn_charts() == 1
    assert visit.fits()
