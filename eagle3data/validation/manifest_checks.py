"""Level `quick`: what the manifest says of the set, by itself and against a given model."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3data.schema.layers import missing_final_layer
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.target import describe_target
from eagle3data.validation.findings import Finding, Severity


def check_layers(manifest: Manifest) -> Iterator[Finding]:
    """Whether the final layer is among those that were captured."""
    layers, n = manifest.layers, manifest.final_layer
    missing = missing_final_layer(layers, n)
    if missing is not None:
        # A list that stops exactly one short is the published mistake (ids counted by the
        # layers' outputs); a list of aux layers only can be meant.
        yield Finding(
            kind="wrong_final_layer",
            severity=Severity.ERROR if layers[-1] == n - 1 else Severity.WARNING,
            layer=layers[-1],
            detail=f"layers {layers} of a target of {n} layers: {missing}",
            expected=f"layer {n} among them",
            advice="Extract again with --layers auto, or say whose numbering the ids are in.",
        )


def check_target(manifest: Manifest, model: str, revision: str | None) -> Iterator[Finding]:
    """Whether the set was made for this model and its tokenizer.

    Args:
        manifest: of the set.
        model: folder or hub id.
        revision: hub revision.

    Raises:
        InputError: no such model.
    """
    target, tokenizer = describe_target(model, revision)
    made = manifest.target
    differing = [
        f"{name} {getattr(made, name)} against {getattr(target, name)}"
        for name in ("architecture", "num_hidden_layers", "hidden_size", "vocab_size")
        if getattr(made, name) != getattr(target, name)
    ]
    if made.config_digest != target.config_digest:
        yield Finding(
            kind="wrong_model",
            detail=f"the set was made for {made.name}, its config is not that of {model}"
            + (f": {'; '.join(differing)}." if differing else " (another revision?)."),
            expected=f"config digest {made.config_digest}",
            advice="Give the model and revision that the set was made for.",
        )
    if None not in (made.revision, target.revision) and made.revision != target.revision:
        yield Finding(
            kind="wrong_model",
            detail=f"the set was made for revision {made.revision}, given is {target.revision}.",
            advice="Give the revision that the set was made for.",
        )
    for name in ("digest", "chat_template_digest"):
        own, given = getattr(manifest.tokenizer, name), getattr(tokenizer, name)
        if own is not None and own != given:
            what = "tokenizer" if name == "digest" else "chat template"
            yield Finding(
                kind="wrong_tokenizer",
                severity=Severity.ERROR if name == "digest" else Severity.WARNING,
                detail=f"the set's {what} is not the model's.",
                expected=f"{what} digest {own}, found {given}",
                advice="Prepare and extract again with this model's tokenizer.",
            )
