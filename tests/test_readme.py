"""The Python that README shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from eagle3data import open_dataset

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks_run(states: str, smollm2: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2
    mine = tmp_path / "mine"
    names: dict[str, object] = {}
    for block in blocks:
        code = block.replace('"MODEL"', repr(str(smollm2)))
        code = code.replace('"./states"', repr(states)).replace('"./mine"', repr(str(mine)))
        exec(code, names)
    assert open_dataset(str(mine)).index["split"].to_pylist() == ["train"]
