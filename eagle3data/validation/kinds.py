"""What each kind of finding means, in a sentence for people."""

from __future__ import annotations

MEANING = {
    "all_zero": "Rows of states are all zero; a real state never is.",
    "array_metadata": "A Zarr document is not what the manifest says; other readers would misread.",
    "chunk_corrupt": "Stored bytes no longer match their checksum: bit rot, or a torn write.",
    "chunk_missing": "A chunk inside a sample was never written.",
    "clipped": "Many values stop at one magnitude: larger ones were cut off there.",
    "constant_dimensions": "Some of the hidden dimensions hold one value everywhere.",
    "context_free": "States depend on the token alone, as if nothing before it had been seen.",
    "duplicate_layers": "Two layers' places hold the same states.",
    "duplicate_rows": "The same states lie in several places where the tokens differ.",
    "duplicate_sample": "One sample id is in the index twice.",
    "index_changed": "The index is not the one that was committed.",
    "index_corrupt": "A part of the index can't be read.",
    "index_hole": "A planned sample is missing, or one is there that nobody planned.",
    "index_overlap": "Two samples claim the same tokens of a shard.",
    "layers_swapped": "States lie in another layer's place.",
    "ledger_corrupt": "An entry of the ledger of failed samples can't be read.",
    "length_mismatch": "The index and the states, tokens or mask disagree on a length.",
    "mask_empty": "The loss mask trains nothing, or the prompt too.",
    "mask_shifted": "The loss mask is off its tokens.",
    "mask_wrong_role": "The loss mask covers what others than the assistant say.",
    "misread_bits": "The bits were written as one number format and read as another.",
    "nonfinite": "States hold NaN.",
    "object_changed": "Whole chunks, but not those that were committed.",
    "object_missing": "An object of a committed shard is gone.",
    "object_truncated": "An object is shorter than it was committed.",
    "object_unreadable": "The disk or the store could not deliver an object; it may pass.",
    "plan_corrupt": "The plan of which sample goes where can't be read or contradicts itself.",
    "plan_missing": "Committed samples that no plan names.",
    "prefix_mismatch": "Samples that begin with the same tokens begin with different states.",
    "saturated": "Infinite values: more than float16's 65,504 was cast.",
    "scaled": "States are the model's own times a number.",
    "shifted": "States lie beside their tokens, so each is taken for another token's.",
    "states_differ": "States are not those that the model itself computes.",
    "swapped_samples": "States are those of another sample, or of nothing known.",
    "tokens_differ": "The index and the shard hold different tokens or masks.",
    "tokens_invalid": "Token ids that the target's vocabulary doesn't have.",
    "tombstone_corrupt": "A tombstone can't be read; it hides its sample all the same.",
    "unlike_rest": "States unlike those of the same layer in the rest of the set.",
    "unrelated": "States say no more of their tokens than a stranger's do.",
    "wrong_final_layer": "What is stored as the final layer is another one.",
    "wrong_layer": "What is stored as a layer is one that the set doesn't keep.",
    "wrong_model": "The set was made for another model or revision.",
    "wrong_norm_state": "The final layer was taken before the norm where after is declared, or "
    "the reverse.",
    "wrong_tokenizer": "The set was made with another tokenizer or chat template.",
}


def meaning_of(kind: str) -> str | None:
    """A sentence on a kind; None for one that says enough by itself."""
    return MEANING.get(kind)
