"""What `test_torchrun.py` has torchrun start: a rank that trains and says where it stands.

Words: data set, folder for what each rank saw, how it reads (`plain`, `follow`, or
`stalled`, which follows without patience), steps to take or `all`.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from eagle3data import StreamingLoader, open_dataset
from eagle3data.schema.errors import InputError


def main() -> None:
    """Write `<rank>.json`: names of each batch, and the state after the last."""
    url, out, way, steps = sys.argv[1:]
    settings: dict[str, Any] = {"token_budget": 64, "seed": 11, "layers": [2]}
    if way != "plain":
        settings |= {"follow": True, "follow_timeout": 60 if way == "follow" else 0.2}
    dataset = open_dataset(url)
    try:
        StreamingLoader(dataset, **settings)
    except InputError as error:
        refused = str(error)
    torch.distributed.init_process_group("gloo")
    loader = StreamingLoader(dataset, **settings)
    names = []
    for batch in islice(loader, None if steps == "all" else int(steps)):
        names.append(batch.sample_ids)
        # Whoever is behind holds the others up here: the loader's messages must not cross these.
        torch.distributed.all_reduce(torch.ones(1))
    row = {"refused": refused, "names": names, "state": loader.state_dict()}
    Path(out, f"{loader.rank}.json").write_text(json.dumps(row))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
