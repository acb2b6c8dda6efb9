"""One sample: its text, mask, norms and what the head says are those of the data and the target."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from eagle3data import Manifest, open_dataset
from eagle3data.readers.overview import describe_sample
from eagle3data.schema.sample import Sample
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from eagle3data.storage.tokenizer import load_tokenizer
from eagle3data.storage.tombstones import bury
from eagle3data.validation.findings import Finding, Level, Report
from eagle3data.validation.repair import repair
from eagle3data.view.target import pieces
from tests.planned import PlannedSet
from tests.support import random_sample, random_samples, small_manifest, write_set
from tests.view.conftest import Client, Open
from tests.view.serving import facts
from tests.view.test_overview import HOSTILE


def tokens(html: str) -> list[tuple[str, str]]:
    """Classes and text of each token."""
    found = re.findall(r'<span class="(t[ \w]*)" id="t\d+">(.*?)</span>', html, re.DOTALL)
    return [(tone, unescape(text)) for tone, text in found]


def rows(html: str) -> dict[str, Any]:
    said = re.search(r'data-rows="([^"]*)"', html)
    assert said is not None
    value: dict[str, Any] = json.loads(unescape(said[1]))
    return value


def test_text_mask_and_norms(states: str, smollm2: Path, client: Client) -> None:
    dataset = open_dataset(states)
    known = describe_sample(dataset, 5)
    page = client(states, model=str(smollm2)).get(f"/sample?id={known['sample_id']}")
    assert page.status_code == 200
    shown = tokens(page.text)
    ids, mask = known["input_ids"], known["loss_mask"]
    assert "".join(text for _, text in shown) == load_tokenizer(str(smollm2)).decode(ids)
    assert ["k" in tone.split() for tone, _ in shown] == [bool(one) for one in mask]
    assert facts(page.text) == {"length": str(len(ids)), "loss": str(sum(mask))}
    found = rows(page.text)
    assert found["ids"] == ids
    for layer in known["layers"]:
        norms = found["norms"][str(layer["layer"])]
        assert len(norms) == len(ids)
        for name, value in (("min", min(norms)), ("median", np.median(norms)), ("max", max(norms))):
            assert value == pytest.approx(layer[name], rel=1e-3)


def test_the_head_says_what_the_engine_said(states: str, smollm2: Path, client: Client) -> None:
    dataset = open_dataset(states)
    visitor = client(states, model=str(smollm2))
    for position in (0, 1):
        answer = visitor.get(f"/sample/head?id={dataset.sample_id(position)}").json()
        sample = dataset.read(position)
        assert len(answer["rows"]) == len(sample)
        last = answer["rows"][-1]
        assert last["token"] == last["real"] == sample.witness_token
        said = np.exp(float(sample.witness_logprob or 0))
        assert last["real_share"] == pytest.approx(said, rel=0.05)
        following = sample.input_ids[1:].tolist()
        assert [row["real"] for row in answer["rows"][:-1]] == following
        right = [row["rank"] == 1 for row in answer["rows"]]
        assert right == [row["token"] == row["real"] for row in answer["rows"]]
        assert 0.4 < np.mean(right) < 1


def test_without_the_target_tokens_are_ids(states: str, client: Client) -> None:
    dataset = open_dataset(states)
    visitor = client(states)
    page = visitor.get(f"/sample?id={dataset.sample_id(0)}").text
    ids = dataset.read(0).input_ids.tolist()
    assert [text for _, text in tokens(page)] == [str(one) for one in ids]
    assert "Start view with --model" in page
    assert visitor.get(f"/sample/head?id={dataset.sample_id(0)}").status_code == 404


def test_a_character_of_several_tokens_is_shown_whole(smollm2: Path) -> None:
    tokenizer = load_tokenizer(str(smollm2))
    text = "Wörter: 日本語 🦅 end"
    ids = tokenizer.encode(text)
    found = pieces(tokenizer, ids)
    assert len(found) == len(ids)
    assert "".join(found) == text
    assert "🦅" in found or " 🦅" in found


@pytest.fixture
def odd(tmp_path: Path) -> str:
    """A sample of 40 tokens with a zero row at 10, one a hundred times as large at 20."""
    manifest = small_manifest()
    sample = random_sample("odd", 40, 1, manifest)
    sample.hidden_states[6][10] = 0
    sample.hidden_states[12][20] *= 100
    sample.hidden_states[12][0] *= 100
    return write_set(tmp_path / "set", [sample], manifest)


def test_rows_that_look_wrong_stand_out(odd: str, client: Client) -> None:
    report = Report(url=odd, level=Level.FULL)
    report.add([Finding(kind="shifted", detail="by one", sample_id="odd", token_range=(30, 32))])
    page = client(odd, report=report).get("/sample?id=odd").text
    tones = [set(tone.split()) for tone, _ in tokens(page)]
    assert [at for at, tone in enumerate(tones) if "odd" in tone] == [10, 20]
    assert [at for at, tone in enumerate(tones) if "sink" in tone] == [0]
    assert [at for at, tone in enumerate(tones) if "bad" in tone] == [30, 31]
    assert "layer 6 is zero throughout" in page
    assert "at layer 12 its norm is" in page
    assert "<code>shifted</code>: by one" in page


def test_long_samples_come_in_windows(tmp_path: Path, client: Client) -> None:
    manifest = small_manifest(shard_tokens=4096)
    url = write_set(tmp_path / "set", [random_sample("long", 3000, 1, manifest)], manifest)
    visitor = client(url)
    second = visitor.get("/sample?id=long&from=2048").text
    ids = open_dataset(url).read(0).input_ids
    assert [int(text) for _, text in tokens(second)] == ids[2048:].tolist()
    assert rows(second)["first"] == 2048
    assert visitor.get("/sample?id=long&from=3000").status_code == 404
    assert visitor.get("/sample?id=long&from=../0").status_code == 404


@pytest.mark.parametrize(
    "name", ["nobody", "../../etc/passwd", "..%2f..%2fzarr.json", "", "%00", HOSTILE]
)
def test_no_such_sample(states: str, client: Client, name: str) -> None:
    page = client(states).get("/sample", params={"id": name})
    assert page.status_code == 404
    assert "has no sample" in page.text
    assert "<script>alert" not in page.text


def test_markup_in_tokens_and_names_is_text(
    tmp_path: Path, smollm2: Path, opened: Open, client: Client
) -> None:
    ids = load_tokenizer(str(smollm2)).encode(HOSTILE)
    manifest = Manifest.synthetic(hidden_size=32, num_hidden_layers=12, vocab_size=49_152)
    made = random_sample(HOSTILE, len(ids), 1, manifest, source=HOSTILE, split=HOSTILE)
    hostile = Sample(
        hidden_states=made.hidden_states,
        input_ids=ids,
        loss_mask=made.loss_mask,
        sample_id=HOSTILE,
        source=HOSTILE,
        source_extra={HOSTILE: HOSTILE},
    )
    url = write_set(tmp_path / "set", [hostile], manifest)
    address = f"/sample?id={quote(HOSTILE)}"
    page = client(url, model=str(smollm2)).get(address).text
    assert "".join(text for _, text in tokens(page)) == HOSTILE
    assert "<script>alert" not in page
    visit = opened(url, address, model=str(smollm2))
    assert visit.text("#tokens") == HOSTILE
    assert "are not that model's" in visit.text("#head-said")
    assert visit.count("main script, main img, main [onerror]") == 0


def test_a_damaged_layer_is_said_beside_the_text(copied: Path, client: Client) -> None:
    dataset = open_dataset(str(copied))
    path = copied / layout.shard_object(layout.states_array(15), 0)
    data = bytearray(path.read_bytes())
    # Chunks lie in the order in which they were written, which is not the samples'.
    chunk = dataset.manifest.storage.axis.chunks_of(0, dataset.length(0))[0]
    data[int(dataset.shard_reader(layout.states_array(15), 0).index[chunk, 0])] ^= 1
    path.unlink()
    path.write_bytes(data)
    page = client(str(copied)).get(f"/sample?id={dataset.sample_id(0)}")
    assert page.status_code == 200
    assert "chunk_corrupt" in page.text
    assert len(tokens(page.text)) == dataset.length(0)
    assert list(rows(page.text)["norms"]) == ["2", "27", "30"]


def test_a_set_that_changes_meanwhile(tmp_path: Path, client: Client) -> None:
    planned = PlannedSet(str(tmp_path / "set"), 2)
    planned.commit(0)
    visitor = client(planned.root.url)
    assert visitor.get("/sample?id=s0").status_code == 200
    assert visitor.get("/sample?id=s1").status_code == 404
    planned.commit(1)
    assert visitor.get("/sample?id=s1").status_code == 200
    bury(Root(planned.root.url), shard=0, sample_id="s0", kind="nonfinite", reason="NaN")
    hidden = visitor.get("/sample?id=s0")
    assert hidden.status_code == 404
    assert "it may be hidden by a tombstone" in hidden.text
    assert facts(visitor.get("/samples").text)["found"] == "1"


def test_a_set_that_is_repaired_meanwhile(tmp_path: Path, client: Client) -> None:
    manifest = small_manifest()
    url = write_set(tmp_path / "set", random_samples(9, manifest), manifest)
    visitor = client(url)
    assert facts(visitor.get("/").text)["samples"] == "9"
    path = tmp_path / "set" / layout.shard_object(layout.states_array(6), 0)
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert "chunk_corrupt" in visitor.get("/sample?id=s0").text
    repair(url)
    left = open_dataset(url)
    assert 0 < left.hidden < 9
    assert visitor.get("/sample?id=s0").status_code == 404
    assert visitor.get("/sample?id=s8").status_code == 200
    overview = visitor.get("/").text
    assert facts(overview)["samples"] == str(len(left))
    assert f"{left.hidden} samples hidden by tombstones" in overview


def test_a_set_in_a_bucket(bucket: str, client: Client) -> None:
    manifest = small_manifest()
    url = write_set(f"{bucket}/viewed", random_samples(4, manifest), manifest)
    visitor = client(url)
    for path in ("/", "/shards", "/shards?colour=norms", "/samples", "/live", "/sample?id=s2"):
        assert visitor.get(path).status_code == 200, path
    assert facts(visitor.get("/").text)["tokens"] == str(open_dataset(url).tokens)


def test_in_a_browser(states: str, smollm2: Path, opened: Open) -> None:
    dataset = open_dataset(states)
    known = describe_sample(dataset, 3)
    visit = opened(states, f"/sample?id={known['sample_id']}", model=str(smollm2), width=390)
    visit.wait_for(".modes:not([hidden])")
    assert visit.count("#tokens .t") == known["length"]
    assert visit.count("#tokens .t.k") == sum(known["loss_mask"])
    visit.do(lambda page: page.locator("#t7").hover())
    panel = visit.text("#panel")
    assert f"{known['input_ids'][7]}" in panel
    assert "the head says" in panel
    norm = float(np.linalg.norm(dataset.read(3).hidden_states[30][7].astype(float)))
    assert f"{norm:.3g}" in panel.replace(",", "")
    visit.do(lambda page: page.locator("#tokens .nl").first.hover())
    assert visit.text("#panel h3") == "↵"
    visit.click("button[data-mode=likely]")
    assert visit.count("#tokens.likely .p4") > 5
    assert visit.drawn_charts() == 1
    assert visit.fits()
