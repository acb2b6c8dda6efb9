"""Manifest: strict, versioned, and telling what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3data.schema.errors import InputError, ManifestError
from eagle3data.schema.manifest import Manifest, manifest_json_schema


@pytest.fixture
def manifest() -> Manifest:
    return Manifest.synthetic(hidden_size=7168, num_hidden_layers=61, vocab_size=163_840)


def _as_json(manifest: Manifest) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(manifest.model_dump_json())
    return value


def test_round_trip(manifest: Manifest) -> None:
    assert manifest.warnings == []
    assert Manifest.from_json(_as_json(manifest), "here") == manifest


def test_unknown_key_is_refused_unless_a_newer_minor_wrote_it(manifest: Manifest) -> None:
    value = _as_json(manifest)
    value["storage"]["shuffled"] = True
    with pytest.raises(ManifestError, match=r"storage\.shuffled"):
        Manifest.from_json(value, "here")
    value["version"] = "1.7"
    assert Manifest.from_json(value, "here").storage == manifest.storage


def test_newer_major_is_refused(manifest: Manifest) -> None:
    with pytest.raises(ManifestError, match="Upgrade eagle3data"):
        Manifest.from_json({**_as_json(manifest), "version": "2.0"}, "here")


@pytest.mark.parametrize("value", [None, 3, {}, {"format": "other"}])
def test_not_a_manifest(value: Any) -> None:
    with pytest.raises(ManifestError, match="no eagle3data manifest"):
        Manifest.from_json(value, "here")


@pytest.mark.parametrize("layers", [[3, 2, 61], [2, 2, 61], [2, 62]])
def test_impossible_layers_are_refused(manifest: Manifest, layers: list[int]) -> None:
    value = _as_json(manifest)
    value["capture"]["layers"] = layers
    with pytest.raises(ManifestError, match="layer"):
        Manifest.from_json(value, "here")


def test_capture_without_the_final_layer_is_flagged() -> None:
    short = Manifest.synthetic(
        hidden_size=7168, num_hidden_layers=61, vocab_size=163_840, layers=[2, 30, 58, 60]
    )
    assert "final layer 61 is not captured" in short.warnings[0]


def test_differences_name_the_field(manifest: Manifest) -> None:
    other = Manifest.synthetic(
        hidden_size=7168, num_hidden_layers=61, vocab_size=163_840, codec="lz4"
    )
    assert manifest.differences(other) == ["storage.codec: none, lz4"]
    assert manifest.identity != other.identity
    assert manifest.differences(manifest) == []


def test_schema_is_json_schema() -> None:
    schema = json.loads(manifest_json_schema())
    shipped = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
    assert shipped.read_text() == manifest_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"target", "tokenizer", "capture", "storage"}


def test_nested_config_is_understood(tmp_path: Path) -> None:
    text = {"hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 163_840}
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": text}))
    manifest = Manifest.for_model(str(tmp_path))
    assert manifest.layers == [2, 30, 58, 61]
    assert manifest.target.architecture == "KimiK25ForConditionalGeneration"
    assert manifest.tokenizer.digest is None


def test_config_without_sizes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="does not say num_hidden_layers, hidden_size, vocab_size"):
        Manifest.for_model(str(tmp_path))


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Manifest.for_model(str(tmp_path / "nowhere"))
