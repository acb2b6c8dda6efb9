"""Live: the numbers of `status --json`, and a page that follows an extraction by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3data.readers.progress import Watch
from eagle3data.readers.progress_words import facts as status_facts
from eagle3data.storage.ledger import record_failure
from eagle3data.storage.root import Root
from tests.planned import PlannedSet, at
from tests.view.conftest import Client, Open
from tests.view.serving import facts
from tests.view.test_overview import HOSTILE


@pytest.fixture
def planned(tmp_path: Path) -> PlannedSet:
    return PlannedSet(str(tmp_path / "set"), 3)


def test_numbers_are_those_of_status(planned: PlannedSet, client: Client) -> None:
    planned.commit(0, written_at=at(0))
    planned.commit(1, written_at=at(10))
    planned.claim_of_the_dead(2)
    record_failure(planned.root, shard=2, sample_id=HOSTILE, kind=HOSTILE, reason=HOSTILE)
    page = client(planned.root.url).get("/live").text
    known = status_facts(Watch(Root(planned.root.url)).look())
    shown = facts(page)
    assert shown["committed"] == str(known["shards"]["committed"]) == "2"
    assert shown["planned"] == str(known["shards"]["planned"]) == "3"
    assert shown["tokens"] == str(known["tokens"]["committed"]) == "200"
    assert (shown["failed"], shown["claims"]) == ("1", "1")
    assert "10 tokens/s on average" in page
    assert "Nobody works on it now" in page
    assert "the next worker takes it over" in page
    assert "<script>alert" not in page


def test_an_unreadable_part_is_named(planned: PlannedSet, client: Client) -> None:
    planned.commit(0)
    (Path(planned.root.path) / "index/00000000.arrow").write_bytes(b"torn")
    page = client(planned.root.url).get("/live")
    assert page.status_code == 200
    assert "shard 0: its index part can't be read" in page.text


def test_the_page_follows_an_extraction(planned: PlannedSet, opened: Open) -> None:
    visit = opened(planned.root.url, "/live", width=390)
    assert visit.text("main").find("no shard committed yet") > 0
    for shard in range(3):
        planned.commit(shard, written_at=at(10 * shard))
        visit.wait_for(f"#fact-committed[value='{shard + 1}']")
    assert visit.text(".progress-head").startswith("All is committed")
    assert visit.drawn_charts() == 1
    assert visit.fits()
